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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float32, Int
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from l2rm_jax.judging.fold_samples import FoldPairs, Part, part_of
from l2rm_jax.judging.log_means import compare_block, mean_exps
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


def best_temperature(
    similarities: Float32[np.ndarray, "I M"], caption_image: Int[np.ndarray, " M"]
) -> float:
    """Return the temperature at which matched pairs have the most information.

    It minimises the contrastive loss. As a function of the inverse temperature the loss has a
    single minimum, because log-sum-exp is convex. If the similarities rank every pair correctly,
    lower temperatures are always better, so the search is limited to 1/30 to 10 times their
    standard deviation.

    Args:
      similarities: of all images with all captions of a set that the model has not seen.
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


def compare_fold(here: FoldPairs, model: Model) -> Compared:
    """Compute the information of all pairs of a fold, and of their known mismatches (`compare`).

    Args:
      here: the fold with its sample.
      model: a model that was fitted without this fold.
    """
    part = part_of(here, np.arange(len(here.images)))
    return compare(part, compare_references(here, model), model)


def compare_references(here: FoldPairs, model: Model) -> References:
    """Score the sampled images of a fold against its sampled captions.

    Args:
      here: the fold with its sample.
      model: a model that was fitted without this fold.
    """
    images, captions = here.images[here.references], here.pairs[here.captions]
    gone = here.replaced[:, None] == here.captions
    owners = here.images[here.position[here.captions]]
    scores = model.similarity(images, captions)
    means = mean_exps(scores, gone, owners, images[:, None] == owners, model.temperature, True)
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
        values = compare_block(
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
        found = mean_exps(scores, nothing, of.owners, same, model.temperature, with_apart)
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
