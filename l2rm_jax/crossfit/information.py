"""Information of a pair: how much better caption and image fit each other than others of a fold.

With the similarity s divided by a temperature, the information is the log-probability of the pair
under a softmax over the images, and under one over the captions, averaged, each relative to chance:

    information = s - (log mean exp over images + log mean exp over captions) / 2

In nats; 0 is no better than a random pair. It estimates pointwise mutual information, as the
contrastive loss InfoNCE does (van den Oord et al., Representation Learning with Contrastive
Predictive Coding, 2018). Captions that fit every image, and images that fit every caption, lose
their advantage.

Known negatives are scored in the same way: each caption with images of its fold that it is not
stored with. Whatever the data hold, these are mismatched pairs.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float32, Int
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from l2rm_jax.crossfit.rows import padded_blocks
from l2rm_jax.errors import DataError

TEMPERATURE = 0.1  # suits cosines
NEGATIVES = 20  # known negatives of a caption
REFERENCES = 1000  # images, and captions, over which the two means are taken, at most
_CAPTIONS = 1024  # in a block that is compared with all references
_PAIRS = 128  # in a block of which only the diagonal is needed

# Maps rows of images and rows of captions to [images, captions] similarities.
Similarity = Callable[[np.ndarray, np.ndarray], ArrayLike]


class Evidence(NamedTuple):
    """Information of pairs, and of their captions with images that are known to be wrong."""

    information: Float32[np.ndarray, " pairs"]
    negatives: Float32[np.ndarray, "pairs negatives"]  # siblings share their negative images


def product_similarity(
    image_rows: Int[np.ndarray, " images"],
    image_codes: Float32[ArrayLike, "images d"],
    caption_rows: Int[np.ndarray, " captions"],
    caption_codes: Float32[ArrayLike, "captions d"],
) -> Similarity:
    """Return the inner products of vectors as a function of rows of the data set.

    Args:
      image_rows: the images that have a vector, in ascending order.
      image_codes: their vectors.
      caption_rows: the captions that have a vector, in ascending order.
      caption_codes: their vectors.
    """
    image_codes, caption_codes = jnp.asarray(image_codes), jnp.asarray(caption_codes)

    def similarity(of_images: np.ndarray, of_captions: np.ndarray) -> jax.Array:
        i = np.searchsorted(image_rows, of_images)
        c = np.searchsorted(caption_rows, of_captions)
        return _products(image_codes, caption_codes, i, c)

    return similarity


def best_temperature(
    similarities: Float32[np.ndarray, "I M"], caption_image: Int[np.ndarray, " M"]
) -> float:
    """Return the temperature at which matched pairs have the most information.

    There the contrastive loss is least. As a function of the inverse of the temperature it has one
    minimum, as a log-sum-exp is convex. Similarities that rank every pair right gain from any lower
    temperature, so it is at least 1/30 of their standard deviation, and at most ten of these.

    Args:
      similarities: of all these images with all these captions, which the model has not seen.
      caption_image: row of the image that each caption was written for.
    """
    own = np.arange(similarities.shape[1])
    spread = float(similarities.std()) or 1.0

    def loss(log_inverse: float) -> float:
        scaled = similarities * np.float32(np.exp(log_inverse) / spread)
        of_images = logsumexp(scaled, axis=1)[caption_image] - np.log(len(own))
        of_captions = logsumexp(scaled, axis=0) - np.log(len(scaled))
        return float(np.mean((of_images + of_captions) / 2 - scaled[caption_image, own]))

    found = minimize_scalar(
        loss, bounds=(np.log(0.1), np.log(30)), method="bounded", options={"xatol": 0.05}
    )
    return spread / float(np.exp(found.x))


def evidence_by_fold(
    similarity_of: Callable[[int, np.ndarray], Similarity],
    pair_image: Int[np.ndarray, " pairs"],
    image_fold: Int[np.ndarray, " images"],
    pairs: Int[np.ndarray, " n"],
    image_group: Int[np.ndarray, " images"],
    seed: int,
) -> Evidence:
    """Return the evidence on some pairs, fold by fold.

    Args:
      similarity_of: called with a fold and its captions, returns the model that judges that fold:
        one that has not seen it.
      pair_image: row of the image that each caption is stored with.
      image_fold: fold of each image.
      pairs: captions to judge, in ascending order; folds without any are skipped.
      image_group: as in `fold_evidence`.
      seed: as in `fold_evidence`.

    Returns:
      Evidence of `pairs`, in their order.

    Raises:
      DataError: as `fold_evidence`.
    """
    information = np.empty(len(pairs), np.float32)
    negatives = np.empty((len(pairs), NEGATIVES), np.float32)
    fold_of = image_fold[pair_image[pairs]]
    for fold in np.unique(fold_of):
        at = np.flatnonzero(fold_of == fold)
        similarity = similarity_of(int(fold), pairs[at])
        found = fold_evidence(similarity, pair_image, pairs[at], image_group, [seed, int(fold)])
        information[at], negatives[at] = found
    return Evidence(information, negatives)


def fold_evidence(
    similarity: Similarity,
    pair_image: Int[np.ndarray, " pairs"],
    pairs: Int[np.ndarray, " n"],
    image_group: Int[np.ndarray, " images"],
    seed: int | list[int],
    temperature: float = TEMPERATURE,
) -> Evidence:
    """Return the evidence on the pairs of one fold, from a model that has not seen them.

    Memory is that of one block of similarities: the means run over a sample of at most
    `REFERENCES` images and captions, and the negatives come from these images.

    Args:
      similarity: the model. It is called with index arrays of few different lengths.
      pair_image: row of the image that each caption of the data set is stored with.
      pairs: the captions of the fold.
      image_group: group of each image. A negative comes from another group than the image's own.
      seed: seed of the sample and of the negatives.
      temperature: what similarities are divided by.

    Returns:
      Evidence of `pairs`, in their order.

    Raises:
      DataError: the images of these captions are of one group, so there are no negatives.
    """
    rng = np.random.default_rng(seed)
    images, position = np.unique(pair_image[pairs], return_inverse=True)
    some_images, some_captions = _sample(images, rng), _sample(pairs, rng)
    negatives = draw_negatives(image_group[images], image_group[some_images], NEGATIVES, rng)
    image_mean = image_means(similarity, images, some_captions, temperature)
    of_reference = image_mean[np.searchsorted(images, some_images)]

    information = stored_scores(similarity, pair_image, pairs, temperature)
    information -= image_mean[position] / 2
    wrong = np.empty((len(pairs), NEGATIVES), np.float32)
    padded_images, count = next(padded_blocks(some_images))
    for rows, filled in padded_blocks(np.arange(len(pairs)), _CAPTIONS):
        scaled = _scaled(similarity(padded_images, pairs[rows]), temperature)
        caption_mean = _log_mean_exp(scaled.T, count)
        chosen = negatives[position[rows]]
        values = _take(scaled, chosen) - (caption_mean[:, None] + of_reference[chosen]) / 2
        wrong[rows[:filled]] = np.asarray(values)[:filled]
        information[rows[:filled]] -= np.asarray(caption_mean)[:filled] / 2
    return Evidence(information, wrong)


def image_means(
    similarity: Similarity,
    images: Int[np.ndarray, " images"],
    some_captions: Int[np.ndarray, " some"],
    temperature: float,
) -> Float32[np.ndarray, " images"]:
    """Return the log-mean-exp of the scaled similarities of each image with some captions."""
    means = np.empty(len(images), np.float32)
    captions, count = next(padded_blocks(some_captions))
    for rows, filled in padded_blocks(np.arange(len(images)), _CAPTIONS):
        scaled = _scaled(similarity(images[rows], captions), temperature)
        means[rows[:filled]] = np.asarray(_log_mean_exp(scaled, count))[:filled]
    return means


def stored_scores(
    similarity: Similarity,
    pair_image: Int[np.ndarray, " pairs"],
    pairs: Int[np.ndarray, " n"],
    temperature: float,
) -> Float32[np.ndarray, " n"]:
    """Return the scaled similarity of captions with their images: diagonals of small blocks."""
    values = np.empty(len(pairs), np.float32)
    for rows, filled in padded_blocks(np.arange(len(pairs)), _PAIRS):
        block = _scaled(similarity(pair_image[pairs[rows]], pairs[rows]), temperature)
        values[rows[:filled]] = np.asarray(jnp.diagonal(block))[:filled]
    return values


def _sample(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """At most `REFERENCES` of the rows, in ascending order."""
    return np.sort(rng.choice(rows, min(len(rows), REFERENCES), replace=False))


def draw_negatives(
    groups: Int[np.ndarray, " images"],
    reference_groups: Int[np.ndarray, " references"],
    count: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "images count"]:
    """Draw references of another group for each image.

    Raises:
      DataError: the references are of one group.
    """
    if (reference_groups == reference_groups[0]).all():
        raise DataError(
            f"cross-fitting: found {len(groups)} images of one group in a fold, expected captions "
            "of at least two; use fewer folds or more images"
        )
    drawn = rng.integers(0, len(reference_groups), (len(groups), count))
    while (same := reference_groups[drawn] == groups[:, None]).any():
        drawn[same] = rng.integers(0, len(reference_groups), same.sum())
    return drawn


@jax.jit
def _products(images: jax.Array, captions: jax.Array, i: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.matmul(images[i], captions[c].T, precision="highest")


@jax.jit
def _scaled(similarities: jax.Array, temperature: float) -> jax.Array:
    return jnp.asarray(similarities, jnp.float32) / temperature


@jax.jit
def _log_mean_exp(scaled: jax.Array, count: int) -> jax.Array:
    """[n, references] to [n]: log of the mean exp over the first `count` references."""
    counts = jnp.arange(scaled.shape[1]) < count
    return jax.nn.logsumexp(scaled, axis=1, where=counts) - jnp.log(count)


@jax.jit
def _take(scaled: jax.Array, chosen: jax.Array) -> jax.Array:
    """[references, n] at [n, negatives]."""
    return jnp.take_along_axis(scaled.T, chosen, axis=1)
