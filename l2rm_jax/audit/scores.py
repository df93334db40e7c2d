"""Scores of every pair, and of known mismatches, by models that saw neither.

The information of a pair (see `crossfit/information`) says how much better its image and caption
fit each other than others of the fold; `neighbours` adds what the neighbourhood says.

Known mismatches are scored in the same way: each caption takes the place of a random caption of
random other images of its fold. No model is ever trained on them. The partners of a mismatched pair
are mostly in other folds. So a moved caption is compared without the image that it is stored with,
and the image without the caption that has gone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.audit.fold_pairs import FoldPairs
from l2rm_jax.audit.neighbours import Neighbours, neighbour_scores
from l2rm_jax.console import progress_bar
from l2rm_jax.crossfit.information import Similarity, image_means, stored_scores
from l2rm_jax.crossfit.rows import Rows, padded_blocks

_BLOCK = 1024  # captions that are compared with all references at once


class Scores(NamedTuple):
    """Scores of pairs; those of known mismatches have a second axis.

    Attributes:
      of_images: information of the pair among the images of the fold, in nats.
      of_captions: the same among its captions.
      similarity: similarity by the model, in temperatures.
      neighbours: scores by the neighbourhood.
    """

    of_images: Float32[np.ndarray, "..."]
    of_captions: Float32[np.ndarray, "..."]
    similarity: Float32[np.ndarray, "..."]
    neighbours: Neighbours

    @property
    def information(self) -> Float32[np.ndarray, "..."]:
        """Information of the pair in nats; 0 is no better than a random pair."""
        return (self.of_images + self.of_captions) / 2


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


_SCORES = Scores(0, 0, 0, Neighbours(0, 0, 0))
_MOVED = Moved(_SCORES, 0, 0)
LIKE = Evidence(_SCORES, _MOVED, _MOVED, 0)  # the structure, for `stages`


def score_fold(
    here: FoldPairs,
    model: tuple[Similarity, float],
    images: Rows,
    spaces: Sequence[Rows],
    pair_image: Int[np.ndarray, " pairs"],
    image_group: Int[np.ndarray, " images"],
) -> Evidence:
    """Score the pairs of one fold, in the order of `here.pairs`.

    Args:
      here: the pairs. The last of their wrong images is the similar one.
      model: the similarity that judges them, of a model that has not seen them, and its
        temperature.
      images: [images, di] vectors, which say what images are similar.
      spaces: [pairs, dt] vectors of the captions, which say what captions are similar; at least
        one kind.
      pair_image: row of the image that each caption of the data set is stored with.
      image_group: images of one group are not each other's neighbours.
    """
    similarity, temperature = model
    pairs, position = here.pairs, here.position
    i_mean = image_means(similarity, here.images, pairs[here.captions], temperature)
    own = stored_scores(similarity, pair_image, pairs, temperature)
    c_mean, c_mean_elsewhere, contrast = np.empty((3, len(pairs)), np.float32)
    wrong = np.empty((len(pairs), here.wrong.shape[1]), np.float32)
    rows_of_references = here.images[here.references]
    place = np.full(len(here.images), -1)
    place[here.references] = np.arange(len(here.references))
    with progress_bar(len(pairs), "scoring") as bar:
        for at, filled in padded_blocks(np.arange(len(pairs)), _BLOCK):
            scores = similarity(rows_of_references, pairs[at])
            of = position[at]
            values = _compare(scores, here.wrong[of], place[of], temperature)
            targets = c_mean, c_mean_elsewhere, contrast, wrong
            for array, value in zip(targets, values, strict=True):
                array[at[:filled]] = np.asarray(value)[:filled]
            bar.update(filled)
    of_images, of_captions = own - c_mean, own - i_mean[position]
    trust = 1 / (1 + np.exp(-(of_images + of_captions) / 2))
    near, wrong_near = neighbour_scores(here, images, spaces, image_group[here.images], trust)
    chosen = here.wrong[position]
    scores = similarity(rows_of_references, pairs[here.captions])
    gone = here.replaced[:, None] == here.captions
    i_mean_elsewhere = np.asarray(_mean_exp(scores, gone, temperature))
    moved = Moved(
        Scores(
            wrong - c_mean_elsewhere[:, None],
            wrong - i_mean_elsewhere[chosen],
            wrong,
            wrong_near,
        ),
        rows_of_references[chosen],
        pairs[here.replaced][chosen],
    )
    return Evidence(
        Scores(of_images, of_captions, own, near),
        jax.tree.map(lambda x: x[:, :-1], moved),
        jax.tree.map(lambda x: x[:, -1:], moved),
        contrast,
    )


@jax.jit
def _compare(
    scores: jax.Array, wrong: jax.Array, own: jax.Array, temperature: float
) -> tuple[jax.Array, ...]:
    """Compare captions with the references.

    Args:
      scores: [R, B] similarities.
      wrong: [B, k] places of wrong images.
      own: [B] place of the image of each caption, or -1.
      temperature: what similarities are divided by.

    Returns:
      Log mean exp of each caption over the references; that without its own image; the excess of
      the former over the mean; and [B, k] scaled similarities with the wrong images.
    """
    scaled = jnp.asarray(scores, jnp.float32).T / temperature
    mean_exp = jax.nn.logsumexp(scaled, axis=1) - jnp.log(scaled.shape[1])
    is_own = jnp.arange(scaled.shape[1])[None] == own[:, None]
    elsewhere = _mean_exp(scores.T, is_own, temperature)
    chosen = jnp.take_along_axis(scaled, wrong, axis=1)
    return mean_exp, elsewhere, mean_exp - scaled.mean(axis=1), chosen


@jax.jit
def _mean_exp(scores: jax.Array, left_out: jax.Array, temperature: float) -> jax.Array:
    """Log mean exp of each row of [n, m] similarities, without the places that are left out."""
    scaled = jnp.asarray(scores, jnp.float32) / temperature
    kept = ~left_out
    return jax.nn.logsumexp(scaled, axis=1, where=kept) - jnp.log(kept.sum(axis=1))


def gather(folds: dict[int, FoldPairs], found: dict[int, Evidence], pairs: int) -> Evidence:
    """Put the evidence of all folds in the order of the pairs."""
    rows = np.concatenate([folds[fold].pairs for fold in folds])

    def placed(*parts: np.ndarray) -> np.ndarray:
        values = np.concatenate(parts)
        array = np.empty((pairs, *values.shape[1:]), values.dtype)
        array[rows] = values
        return array

    return jax.tree.map(placed, *(found[fold] for fold in folds))
