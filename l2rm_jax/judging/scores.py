"""Score every pair and its known mismatches by models that have seen neither.

Scores come from the model of a fold (`log_odds`) and from the neighbourhood (`neighbours`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.judging.folds import FoldPairs, Part, parts_of
from l2rm_jax.judging.log_odds import (
    Apart,
    Information,
    Model,
    References,
    compare,
    compare_references,
)
from l2rm_jax.judging.neighbours import (
    NeighbourReferences,
    Neighbours,
    neighbour_references,
    neighbour_scores,
    similar_ranks,
    with_similar_images,
)
from l2rm_jax.linear.rows import Rows

_PAIRS = 7168  # pairs per task, about: with the references, two blocks of vectors to encode


class Scores(NamedTuple):
    """Scores of pairs; for known mismatches with a second axis."""

    model: Information
    neighbours: Neighbours

    @property
    def information(self) -> Float32[np.ndarray, "..."]:
        """Information of the pair in nats; 0 is no better than a random pair."""
        return self.model.mean


class Moved(NamedTuple):
    """Known mismatches: each caption replaces a caption of other images.

    Attributes:
      scores: [pairs, k] scores.
      image: [pairs, k] rows of these images; sibling captions share them.
      replaced: [pairs, k] rows of the captions that are replaced.
    """

    scores: Scores
    image: Int[np.ndarray, "pairs k"]
    replaced: Int[np.ndarray, "pairs k"]


class Evidence(NamedTuple):
    """Scores of all pairs and of known mismatches.

    Attributes:
      stored: scores of the pairs.
      wrong: captions moved to random images.
      near: captions moved to one image whose captions are similar to their siblings.
      hard: [pairs] information of captions moved to one image whose captions are similar to the
        moved caption, in nats.
      hard_image: [pairs] rows of these images.
      apart: information of the pairs and of `wrong` from which the rate is estimated.
      contrast: [pairs] how differently the images of the fold fit the caption, in nats; 0 if all
        fit it equally well.
    """

    stored: Scores
    wrong: Moved
    near: Moved
    hard: Float32[np.ndarray, " pairs"]
    hard_image: Int[np.ndarray, " pairs"]
    apart: Apart
    contrast: Float32[np.ndarray, " pairs"]


_SCORES = Scores(Information(0, 0, 0), Neighbours(0, 0, 0))
_MOVED = Moved(_SCORES, 0, 0)
LIKE = Evidence(_SCORES, _MOVED, _MOVED, 0, 0, Apart(0, 0), 0)  # the structure of a part


class FoldReferences(NamedTuple):
    """Everything a worker needs to score one fold.

    Attributes:
      model: fitted on the other folds.
      pairs: sampled images and captions to compare the pairs with.
      neighbours: samples from which neighbours are chosen.
      replaced: [R] row of the caption of each reference that a wrong caption replaces.
    """

    model: Model
    pairs: References
    neighbours: NeighbourReferences
    replaced: Int[np.ndarray, " R"]


def fold_references(
    here: FoldPairs,
    model: Model,
    images: Rows,
    spaces: Sequence[Rows],
    image_group: Int[np.ndarray, " images"],
) -> FoldReferences:
    """Collect everything needed to score the pairs of a fold.

    Args:
      here: the pairs.
      model: model that scores them, fitted on the other folds.
      images: [images, di] vectors, which define similar images.
      spaces: [pairs, dt] vectors of the captions, which define similar captions; at least one
        embedding.
      image_group: group of each image; images of one group are not each other's neighbours.
    """
    references = compare_references(here, model)

    def trust(part: Part) -> Float32[np.ndarray, " n"]:
        return 1 / (1 + np.exp(-compare(part, references, model).stored.mean))

    neighbours = neighbour_references(here, images, spaces, image_group, trust)
    return FoldReferences(model, references, neighbours, here.pairs[here.replaced])


def fold_tasks(
    here: FoldPairs, image_group: Int[np.ndarray, " images"], seed: int
) -> list[tuple[tuple[Part, np.ndarray, np.ndarray], Int[np.ndarray, " n"]]]:
    """Cut a fold into tasks, in the order of the data, so that files are read from front to back.

    Args:
      here: the fold.
      image_group: group of each image.
      seed: of the similar images that are drawn.

    Returns:
      The first three arguments of `score_part`, and the places of the pairs in the fold.
    """
    order, ranks = np.argsort(here.images), similar_ranks(len(here.images), seed)
    pieces = np.array_split(order, -(-len(here.pairs) // _PAIRS))
    return [
        ((part, image_group[part.images], ranks[places]), at)
        for places, (part, at) in zip(pieces, parts_of(here, pieces), strict=True)
    ]


def score_part(
    part: Part,
    groups: Int[np.ndarray, " m"],
    ranks: Int[np.ndarray, " m"],
    of: FoldReferences,
    images: Rows,
    spaces: Sequence[Rows],
) -> Evidence:
    """Score some pairs of a fold, independently of its other pairs.

    Args:
      part: some images of the fold with all their pairs.
      groups: group of each image.
      ranks: rank of the similar image to use as hard negative (`similar_ranks`).
      of: references of the fold.
      images: [images, di] vectors.
      spaces: [pairs, dt] vectors of the captions.
    """
    near = of.neighbours
    part = with_similar_images(part, near, spaces[0], groups, ranks)
    found = compare(part, of.pairs, of.model, with_apart=True)
    moved_images, part = of.pairs.images[part.wrong], part._replace(wrong=part.wrong[:, :-1])
    stored, wrong = neighbour_scores(part, near, images, spaces, groups)
    of_wrong = jax.tree.map(lambda x: x[:, :-1], found.wrong)
    moved = Moved(Scores(of_wrong, wrong), moved_images[:, :-1], of.replaced[part.wrong])
    return Evidence(
        Scores(found.stored, stored),
        jax.tree.map(lambda x: x[:, :-1], moved),
        jax.tree.map(lambda x: x[:, -1:], moved),
        found.wrong.mean[:, -1],
        moved_images[:, -1],
        found.apart._replace(wrong=found.apart.wrong[:, :-2]),
        found.contrast,
    )


def gather(rows: Sequence[Int[np.ndarray, " n"]], found: Sequence[Evidence]) -> Evidence:
    """Put the evidence of all parts in the order of the pairs; `rows` are the rows per part."""
    rows = np.concatenate(rows)

    def placed(*parts: np.ndarray) -> np.ndarray:
        values = np.concatenate(parts)
        array = np.empty_like(values)
        array[rows] = values
        return array

    return jax.tree.map(placed, *found)
