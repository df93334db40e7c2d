"""Scores of every pair, and of known mismatches, by models that saw neither.

What the model of a fold says (`information`), and what the neighbourhood says (`neighbours`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.judging.fold_pairs import FoldPairs
from l2rm_jax.judging.information import Information, Model, compare_fold
from l2rm_jax.judging.neighbours import Neighbours, neighbour_scores
from l2rm_jax.linear.rows import Rows


class Scores(NamedTuple):
    """Scores of pairs; those of known mismatches have a second axis."""

    model: Information
    neighbours: Neighbours

    @property
    def information(self) -> Float32[np.ndarray, "..."]:
        """Information of the pair in nats; 0 is no better than a random pair."""
        return self.model.mean


class Moved(NamedTuple):
    """Known mismatches: each caption in the place of a caption of other images.

    Attributes:
      scores: [pairs, k] scores.
      image: [pairs, k] rows of these images; captions of an image share them.
      replaced: [pairs, k] rows of the captions whose place is taken.
    """

    scores: Scores
    image: Int[np.ndarray, "pairs k"]
    replaced: Int[np.ndarray, "pairs k"]


class Evidence(NamedTuple):
    """Scores of all pairs and of known mismatches.

    Attributes:
      stored: scores of the pairs.
      wrong: captions moved to random images.
      near: captions moved to one image whose captions say something similar.
      contrast: [pairs] how differently the images of the fold fit the caption, in nats; 0 if they
        fit it all alike.
    """

    stored: Scores
    wrong: Moved
    near: Moved
    contrast: Float32[np.ndarray, " pairs"]


_SCORES = Scores(Information(0, 0, 0), Neighbours(0, 0, 0))
_MOVED = Moved(_SCORES, 0, 0)
LIKE = Evidence(_SCORES, _MOVED, _MOVED, 0)  # the structure, for `stages`


def score_fold(
    here: FoldPairs,
    model: Model,
    images: Rows,
    spaces: Sequence[Rows],
    image_group: Int[np.ndarray, " images"],
    update: Callable[[int], None],
) -> Evidence:
    """Score the pairs of one fold, in the order of `here.pairs`.

    Args:
      here: the pairs. The last of their wrong images is the similar one.
      model: what judges them, and has not seen them.
      images: [images, di] vectors, which say what images are similar.
      spaces: [pairs, dt] vectors of the captions, which say what captions are similar; at least
        one kind.
      image_group: images of one group are not each other's neighbours.
      update: called with the number of pairs of a block whose scores are made, twice for each.
    """
    found = compare_fold(here, model, update)
    trust = 1 / (1 + np.exp(-found.stored.mean))
    groups = image_group[here.images]
    near, wrong_near = neighbour_scores(here, images, spaces, groups, trust, update)
    chosen = here.wrong[here.position]
    moved = Moved(
        Scores(found.wrong, wrong_near),
        here.images[here.references][chosen],
        here.pairs[here.replaced][chosen],
    )
    return Evidence(
        Scores(found.stored, near),
        jax.tree.map(lambda x: x[:, :-1], moved),
        jax.tree.map(lambda x: x[:, -1:], moved),
        found.contrast,
    )


def gather(folds: Mapping[int, FoldPairs], found: Mapping[int, Evidence]) -> Evidence:
    """Put the evidence of all folds in the order of the pairs."""
    rows = np.concatenate([here.pairs for here in folds.values()])

    def placed(*parts: np.ndarray) -> np.ndarray:
        values = np.concatenate(parts)
        array = np.empty_like(values)
        array[rows] = values
        return array

    return jax.tree.map(placed, *(found[fold] for fold in folds))
