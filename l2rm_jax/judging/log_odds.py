"""Compute the information of a pair: how much better its caption and image fit than others do.

With the similarity s divided by a temperature, the information is the mean of two log-probabilities
relative to chance: of the pair under a softmax over images, and under a softmax over captions:

    information = s - (log mean exp over images + log mean exp over captions) / 2

It is in nats; 0 is no better than a random pair. It estimates pointwise mutual information, as the
contrastive loss InfoNCE does (van den Oord et al., Representation Learning with Contrastive
Predictive Coding, 2018). Captions that fit every image, and images that fit every caption, lose
their advantage.

Known mismatches are scored in the same way: each caption replaces a random caption of random other
images of its fold. Such pairs are mismatched in any data set. The partners of a mismatched pair are
mostly in other folds. So a moved caption is compared without the image that it is stored with, and
its new image without the caption that it replaces.

The true partners of a mismatched pair may be in its fold, though, which no known mismatch has. They
would make it look worse than a known mismatch, and the rate too high. For the rate, pairs and known
mismatches are therefore also compared without the best other image and the best other caption.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float32, Int

from l2rm_jax.judging.folds import FoldPairs, Part, part_of
from l2rm_jax.linear.rows import padded_blocks

TEMPERATURE = 0.1  # suits cosines
_CAPTIONS = 1024  # in a block that is compared with all references
_PAIRS = 128  # in a block of which only the diagonal is needed
_FILLED = 128  # numbers of encoded rows are padded to a multiple of it

# Maps rows of images and rows of captions to [images, captions] similarities.
Similarity = Callable[[np.ndarray, np.ndarray], ArrayLike]


class Model(NamedTuple):
    """Model that scores a fold it has not seen.

    Attributes:
      similarity: maps rows of images and captions of that fold to similarities. It is called with
        index arrays of few different lengths. A `ProductSimilarity` encodes each row only once.
      temperature: divisor of the similarities.
    """

    similarity: Similarity
    temperature: float = TEMPERATURE


class Information(NamedTuple):
    """Information of pairs; for known mismatches with a second axis.

    Attributes:
      of_images: information of the pair among the images of the fold, in nats.
      of_captions: the same among its captions.
      similarity: by the model.
    """

    of_images: Float32[np.ndarray, "..."]
    of_captions: Float32[np.ndarray, "..."]
    similarity: Float32[np.ndarray, "..."]

    @property
    def mean(self) -> Float32[np.ndarray, "..."]:
        """Information of the pair in nats; 0 is no better than a random pair."""
        return (self.of_images + self.of_captions) / 2


class Apart(NamedTuple):
    """Information without the best other image and the captions of the best other caption's image.

    Attributes:
      stored: [pairs] of the pairs, in nats.
      wrong: [pairs, k] of the known mismatches.
    """

    stored: Float32[np.ndarray, " pairs"]
    wrong: Float32[np.ndarray, "pairs k"]


class Compared(NamedTuple):
    """Information of the pairs of a fold by one model, in the order of `FoldPairs.pairs`.

    Attributes:
      stored: of the pairs.
      wrong: [pairs, k] of the known mismatches.
      apart: of both, for the rate.
      contrast: [pairs] how differently the images of the fold fit the caption, in nats; 0 if all
        fit it equally well.
    """

    stored: Information
    wrong: Information
    apart: Apart
    contrast: Float32[np.ndarray, " pairs"]


class References(NamedTuple):
    """Sampled images and captions of a fold, with which its pairs are compared.

    Attributes:
      images: [R] rows of the sampled images.
      captions: [C] rows of the sampled captions.
      owners: [C] row of the image that each of these captions is stored with.
      elsewhere: [R] log-mean-exp of the scaled similarities of each of these images with these
        captions, without the caption that a wrong caption replaces.
      apart: [R] the same also without the captions of the image of the best other caption.
    """

    images: Int[np.ndarray, " R"]
    captions: Int[np.ndarray, " C"]
    owners: Int[np.ndarray, " C"]
    elsewhere: Float32[np.ndarray, " R"]
    apart: Float32[np.ndarray, " R"]


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


class ProductSimilarity(NamedTuple):
    """Inner products of codes, which are computed from rows of the data set on demand.

    Attributes:
      encode_images: maps rows of images to their codes, [n, d].
      encode_captions: maps rows of captions to their codes.
    """

    encode_images: Callable[[np.ndarray], ArrayLike]
    encode_captions: Callable[[np.ndarray], ArrayLike]

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> ArrayLike:
        """Return [images, captions] similarities."""
        return self.of(images, captions)(images, captions)

    def of(self, images: np.ndarray, captions: np.ndarray) -> Similarity:
        """Return the similarity for some rows, each encoded once."""
        images, captions = (_filled(np.unique(rows)) for rows in (images, captions))
        return product_similarity(
            images, self.encode_images(images), captions, self.encode_captions(captions)
        )


def _filled(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " more"]:
    """Pad ascending rows with the last row, so that few different lengths occur."""
    return np.pad(rows, (0, -len(rows) % _FILLED), mode="edge")


def compare_fold(here: FoldPairs, model: Model) -> Compared:
    """`compare` all pairs of a fold by a model that was fitted without it."""
    part = part_of(here, np.arange(len(here.images)))
    return compare(part, compare_references(here, model), model)


def compare_references(here: FoldPairs, model: Model) -> References:
    """Score the sampled images of a fold against its sampled captions, by a model without it."""
    images, captions = here.images[here.references], here.pairs[here.captions]
    gone = here.replaced[:, None] == here.captions
    owners = here.images[here.position[here.captions]]
    scores = model.similarity(images, captions)
    means = _mean_exps(scores, gone, owners, images[:, None] == owners, model.temperature, True)
    return References(images, captions, owners, *map(np.asarray, means))


def compare(
    part: Part,
    of: References,
    model: Model,
    with_apart: bool = False,
) -> Compared:
    """Compute the information of n pairs of a fold, and of their known mismatches.

    The module's docstring has the formula; its means over images and over captions are taken over
    the sample of the fold. Similarities are in memory for one block of 1024 captions at a time.

    Args:
      part: n pairs, and for each image the k sampled images to which its captions are moved.
      of: the sampled images and captions, from `compare_references` with the same model.
      model: a model that was fitted without this fold.
      with_apart: whether to compute `Compared.apart`, which takes time; else it repeats the
        information.

    Returns:
      Information in nats and similarities, `[n]` of the pairs and `[n, k]` of the known mismatches.
    """
    pairs, position, temperature = part.pairs, part.position, model.temperature
    if isinstance(model.similarity, ProductSimilarity):
        rows = np.append(of.images, part.images), np.append(of.captions, pairs)
        model = Model(model.similarity.of(*rows), temperature)
    i_mean, i_apart = _image_means(model, part.images, of, with_apart)
    own = _diagonals(model, part.images[position], pairs)
    means = c_mean, c_mean_elsewhere, c_apart, c_apart_elsewhere, contrast = np.empty(
        (5, len(pairs)), np.float32
    )
    wrong = np.empty((len(pairs), part.wrong.shape[1]), np.float32)
    for at, filled in padded_blocks(np.arange(len(pairs)), _CAPTIONS):
        scores, image = model.similarity(of.images, pairs[at]), position[at]
        values = _compare_block(
            scores, part.wrong[at], part.reference[image], temperature, with_apart
        )
        for array, value in zip((*means, wrong), values, strict=True):
            array[at[:filled]] = np.asarray(value)[:filled]
    stored = Information(own - c_mean, own - i_mean[position], own * np.float32(temperature))
    moved = Information(
        wrong - c_mean_elsewhere[:, None],
        wrong - of.elsewhere[part.wrong],
        wrong * np.float32(temperature),
    )
    apart = Apart(
        own - (c_apart + i_apart[position]) / 2,
        wrong - (c_apart_elsewhere[:, None] + of.apart[part.wrong]) / 2,
    )
    return Compared(stored, moved, apart, contrast)


def _image_means(
    model: Model, images: Int[np.ndarray, " images"], of: References, with_apart: bool
) -> Float32[np.ndarray, "2 images"]:
    """Compute the means over captions of each image, and the same for `Apart`."""
    means, nothing = np.empty((2, len(images)), np.float32), np.zeros((1, len(of.captions)), bool)
    for rows, filled in padded_blocks(np.arange(len(images)), _CAPTIONS):
        scores, same = model.similarity(images[rows], of.captions), images[rows, None] == of.owners
        found = _mean_exps(scores, nothing, of.owners, same, model.temperature, with_apart)
        means[:, rows[:filled]] = np.stack(found)[:, :filled]
    return means


def _diagonals(
    model: Model, images: Int[np.ndarray, " n"], captions: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, " n"]:
    """Compute scaled similarities of captions with their images: diagonals of small blocks."""
    values = np.empty(len(captions), np.float32)
    for rows, filled in padded_blocks(np.arange(len(captions)), _PAIRS):
        block = np.asarray(model.similarity(images[rows], captions[rows]), np.float32)
        values[rows[:filled]] = block.diagonal()[:filled] / np.float32(model.temperature)
    return values


@jax.jit
def _products(images: jax.Array, captions: jax.Array, i: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.matmul(images[i], captions[c].T, precision="highest")


@partial(jax.jit, static_argnames="with_apart")
def _compare_block(
    scores: jax.Array, wrong: jax.Array, own: jax.Array, temperature: float, with_apart: bool
) -> tuple[jax.Array, ...]:
    """Compare captions with the references.

    Args:
      scores: [R, B] similarities.
      wrong: [B, k] places of wrong images.
      own: [B] place of the image of each caption, or -1.
      temperature: divisor of the similarities.
      with_apart: whether the results without the best other image are needed.

    Returns:
      Log-mean-exp of each caption over the references; the same without its own image; both without
      the best other image; the excess of the first over the mean; and [B, k] scaled similarities
      with the wrong images.
    """
    # Sums run down the columns: XLA is slow on a CPU where it has to transpose them.
    scaled = jnp.asarray(scores, jnp.float32) / temperature
    is_other = jnp.arange(len(scaled))[:, None] != own[None]
    if with_apart:
        means = _means_apart(scaled, is_other)
    else:
        mean_exp = jax.nn.logsumexp(scaled, axis=0) - jnp.log(len(scaled))
        elsewhere = log_mean_exp(scaled, is_other, axis=0)
        means = mean_exp, elsewhere, mean_exp, elsewhere
    chosen = jnp.take_along_axis(scaled, wrong.T, axis=0).T
    return *means, means[0] - scaled.mean(axis=0), chosen


def _means_apart(scaled: jax.Array, is_other: jax.Array) -> tuple[jax.Array, ...]:
    """Compute the four means of `_compare_block` from one pass over all others but the best."""
    others = jnp.where(is_other, scaled, -jnp.inf)
    best = jnp.argmax(others, axis=0)
    is_best = jnp.arange(len(scaled))[:, None] == best[None]
    rest = jax.nn.logsumexp(jnp.where(is_best, -jnp.inf, others), axis=0)
    own = jnp.max(jnp.where(is_other, -jnp.inf, scaled), axis=0)
    elsewhere = jnp.logaddexp(rest, jnp.max(others, axis=0))
    count = is_other.sum(axis=0)
    mean_exp = jnp.logaddexp(elsewhere, own) - jnp.log(len(scaled))
    elsewhere -= jnp.log(count)
    apart = jnp.logaddexp(rest, own) - jnp.log(max(len(scaled) - 1, 1))
    apart_elsewhere = rest - jnp.log(jnp.maximum(count - 1, 1))
    apart_elsewhere = jnp.where(count > 1, apart_elsewhere, elsewhere)  # else nothing is left
    return mean_exp, elsewhere, apart, apart_elsewhere


@partial(jax.jit, static_argnames="with_apart")
def _mean_exps(
    scores: jax.Array,
    left_out: jax.Array,
    owners: jax.Array,
    same: jax.Array,
    temperature: float,
    with_apart: bool,
) -> tuple[jax.Array, jax.Array]:
    """Compute the log-mean-exp of each row of [n, m] similarities, without the left-out places.

    Args:
      scores: of n images with m captions.
      left_out: [n, m] or [1, m].
      owners: [m] the image of each caption.
      same: [n, m] whether the caption is stored with the image.
      temperature: divisor of the similarities.
      with_apart: whether the second result is needed.

    Returns:
      The means; and the means also without the captions of the image of the best other caption.
    """
    scaled = jnp.asarray(scores, jnp.float32) / temperature
    is_kept = ~jnp.broadcast_to(left_out, scaled.shape)
    mean_exp = log_mean_exp(scaled, is_kept, axis=1)
    if not with_apart:
        return mean_exp, mean_exp
    best = jnp.argmax(jnp.where(same, -jnp.inf, scaled), axis=1)
    is_apart = is_kept & (owners[None] != owners[best][:, None])
    apart = log_mean_exp(scaled, is_apart, axis=1)
    return mean_exp, jnp.where(is_apart.any(axis=1), apart, mean_exp)  # else nothing is left


def log_mean_exp(values: jax.Array, kept: jax.Array, axis: int) -> jax.Array:
    """Compute the log-mean-exp of the kept places along an axis."""
    return jax.nn.logsumexp(values, axis=axis, where=kept) - jnp.log(kept.sum(axis=axis))
