"""Fit a linear model by expectation-maximisation over a transport plan.

The right caption of a mismatched image is often in the data, with another image. A model that is
fitted only to the stored pairs, however they are weighted, learns nothing from it. So the model is
fitted to a transport plan between all images and all captions, in which the stored pair is a prior
and not the only candidate:

1. The cross moment of images and captions under the plan gives a linear model in closed form. Inner
   folds keep the plan from confirming itself: images of fold f and captions of fold g are compared
   by the model of the plan without the rows of f and without the columns of g.
2. The information of each image and caption, times the prior, is the kernel of the next plan. Each
   caption has the same mass, and each image receives as much as it has captions.

Many images are divided into blocks at random. The plan of a block is partial, because the images of
some moved captions are in other blocks; the model is fitted to the plans of all blocks together.

References:
    Klami, Bayesian Object Matching, Machine Learning 2013: a CCA with an unknown permutation.
    Liu et al., LSMI-Sinkhorn: Semi-supervised Mutual Information Estimation with Optimal Transport,
    2019: few pairs and a plan.
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024:
    transport of suspicious pairs within the loss.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Float32, Int, UInt64

from l2rm_jax.data.content_hashes import hash_keys
from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.data.train_pairs import Rematched
from l2rm_jax.data.vectors import as_rows
from l2rm_jax.judging.content_keys import Keys, vector_keys
from l2rm_jax.judging.log_odds import TEMPERATURE
from l2rm_jax.judging.rate import share_of_random
from l2rm_jax.judging.sibling_swaps import log_ratio, swap_rates
from l2rm_jax.linear.cca import COMPONENTS, Cca
from l2rm_jax.linear.rows import Rows, unit_rows
from l2rm_jax.linear.threads import limit_threads
from l2rm_jax.linear.whitened import whitened
from l2rm_jax.ot.fixed_kernel import fixed_plan

_FOLDS = 4  # inner folds; with two, the plan confirms itself
_COMPONENTS = 256  # principal components of either side
_POWER = 0.7  # of the correlations, relative to the largest
ITERATIONS = 4  # at most
_CHANGE = 0.01  # sum of absolute changes of the plan, as a share of its mass, at which to stop
_SMALLEST = 0.01  # share of a caption that is kept in the plan
_IMAGES = 2000  # images of a block, about
_NULL = 50_000  # random pairs that stored pairs are compared with
_LEAST, _MOST = 0.02, 0.95  # of the share of moved captions
_SIBLINGS = 1.5  # captions per image from which on they may have moved together
_ALONE = 0.3  # share of them that may have moved alone
_STEPS = 10  # iterations of the transport
_ROUNDED = 128  # sizes of transport problems are multiples of it, to share compiled programs
# Ridges by features: where a weak one finds more of held-out pairs, for few pairs, and for many.
_WEAK_RIDGE, _FEW_RIDGE, _MANY_RIDGE = 0.3, 3.0, 1.0
FEW = 2500  # pairs
_FEWEST_SUSPICIOUS = 2  # suspicious pairs to rematch
_SMALLEST_SHARE = 0.02  # of a caption: smaller shares are dropped


class StoredPairs(NamedTuple):
    """Pairs to fit, sorted by block, inner fold and image, in an order given by their contents.

    Attributes:
      images: [n] rows of the images.
      captions: [m] rows of the captions.
      position: [m] place in `images` of the image that each caption is stored with, ascending.
      image_ends: [blocks, folds + 1] bounds of the images of each inner fold of each block.
      caption_ends: [blocks, folds + 1] the same for the captions.
    """

    images: Int[np.ndarray, " n"]
    captions: Int[np.ndarray, " m"]
    position: Int[np.ndarray, " m"]
    image_ends: Int[np.ndarray, "blocks ends"]
    caption_ends: Int[np.ndarray, "blocks ends"]


def stored_pairs(
    images: Int[np.ndarray, " n"],
    captions: Int[np.ndarray, " m"],
    position: Int[np.ndarray, " m"],
    key: UInt64[np.ndarray, " all"],
) -> StoredPairs:
    """Assign images to blocks and inner folds by hash, and sort the pairs by them.

    Args:
      images: rows of the images, in an order that depends only on their contents.
      captions: rows of the captions, likewise.
      position: place in `images` of the image that each caption is stored with.
      key: hash of each image of the data, equal for images that may not be divided by a fold.
    """
    count = -(-len(images) // _IMAGES)
    key = key[images]
    rank = np.empty(len(images), int)
    rank[np.argsort(hash_keys(key, 1), kind="stable")] = np.arange(len(images))
    block = rank * count // len(images)
    fold = (hash_keys(key, 2) % np.uint64(_FOLDS)).astype(int)
    order = np.lexsort((fold, block))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    by_image = np.argsort(place[position], kind="stable")
    position = place[position][by_image]
    cell = (block * _FOLDS + fold)[order]
    ends = np.searchsorted(cell, np.arange(count * _FOLDS + 1))
    of_captions = np.searchsorted(position, ends)
    starts = np.arange(count)[:, None] * _FOLDS + np.arange(_FOLDS + 1)
    return StoredPairs(
        images[order], captions[by_image], position, ends[starts], of_captions[starts]
    )


class Fitted(NamedTuple):
    """Result of the fit.

    Attributes:
      model: the linear model.
      plan: [n, m] share of each caption that goes to each image, where it is at least a hundredth.
    """

    model: Cca
    plan: scipy.sparse.coo_array


def plan_ridge(pairs: int, weak: bool) -> float:
    """Return the ridge for `fit_by_transport`.

    Separation under the plan cannot choose it, because the plan confirms itself. But features that
    take a weak ridge without a plan, such as counts of colours or words, take one with it.

    Args:
      pairs: number of pairs.
      weak: whether a plain fit separates held-out pairs best with its smallest ridge.
    """
    if weak:
        return _WEAK_RIDGE
    return _FEW_RIDGE if pairs <= FEW else _MANY_RIDGE


def fit_by_transport(
    images: Rows,
    captions: Rows,
    stored: StoredPairs,
    weights: Float[np.ndarray, " m"],
    ridge: float,
) -> Fitted:
    """Fit a model to the transport plan of images and captions.

    Args:
      images: [all images, di] vectors.
      captions: [all captions, dc] vectors.
      stored: the pairs.
      weights: weights of these pairs in the first fit.
      ridge: for both sides (see `whitened`).
    """
    z = whitened(images, stored.images, _COMPONENTS, ridge)
    y = whitened(captions, stored.captions, _COMPONENTS, ridge)
    weights = (weights / weights.sum()).astype(np.float32)
    moments = _stored_moments(z.rows, y.rows, stored, weights)
    rates, plan = None, _joined([], stored)
    for _ in range(ITERATIONS):
        before = plan
        plan, moments, rates = _step(z.rows, y.rows, stored, moments, rates)
        if abs(plan - before).sum() < _CHANGE * len(stored.captions):
            break
    left, right, correlations = _singular(moments.sum(axis=(0, 1)))
    model = Cca(z.mean, z.matrix @ left, y.mean, y.matrix @ right, correlations)
    return Fitted(model, plan.tocoo())


def _step(
    z: Float32[np.ndarray, "n p"],
    y: Float32[np.ndarray, "m q"],
    stored: StoredPairs,
    moments: Float[np.ndarray, "f f p q"],
    rates: Sequence[float] | None,
) -> tuple[scipy.sparse.csr_array, Float[np.ndarray, "f f p q"], Sequence[float]]:
    """Return the plan by the models of the moments, its moments, and the rate of each block.

    The rates are estimated in the first step only: later models would confirm their own plan.
    """
    models, count = _models_without(moments), len(stored.image_ends)
    moments, parts, estimated = np.zeros_like(moments), [], []
    for number in range(count):
        block = _Block.of(stored, number)
        information = block.information(z, y, models)
        estimated.append(rates[number] if rates else block.moved(information))
        shares = block.plan(information, estimated[-1], count)
        block.add_moments(moments, z, y, shares / len(stored.captions))
        parts.append(block.largest(shares))
    return _joined(parts, stored), moments, estimated


class _Block(NamedTuple):
    """The images of a block with all captions that are stored with them.

    Attributes:
      images: bounds of the images of each inner fold.
      captions: bounds of the captions of each inner fold.
      position: [c] place in the block of the image of each caption, ascending.
    """

    images: Int[np.ndarray, " ends"]
    captions: Int[np.ndarray, " ends"]
    position: Int[np.ndarray, " c"]

    @classmethod
    def of(cls, stored: StoredPairs, number: int) -> "_Block":
        images, captions = stored.image_ends[number], stored.caption_ends[number]
        position = stored.position[captions[0] : captions[-1]] - images[0]
        return cls(images, captions, position)

    def cells(self) -> list[tuple[tuple[int, int], slice, slice]]:
        """Pair each inner fold of images with each of captions: numbers, and places of both."""
        return [
            ((f, g), slice(*self.images[f : f + 2]), slice(*self.captions[g : g + 2]))
            for f in range(_FOLDS)
            for g in range(_FOLDS)
        ]

    def within(self, images: slice, captions: slice) -> tuple[slice, slice]:
        """Return places in the block."""
        i, c = self.images[0], self.captions[0]
        return (
            slice(images.start - i, images.stop - i),
            slice(captions.start - c, captions.stop - c),
        )

    def information(
        self, z: np.ndarray, y: np.ndarray, models: dict[tuple[int, int], tuple]
    ) -> Float32[np.ndarray, "i c"]:
        """Compute the information of all images and captions, in nats."""
        values = np.empty((self.images[-1] - self.images[0], len(self.position)), np.float32)
        for key, images, captions in self.cells():
            left, right = models[key]
            codes = unit_rows(z[images] @ left), unit_rows(y[captions] @ right)
            values[self.within(images, captions)] = codes[0] @ codes[1].T
        values /= np.float32(TEMPERATURE)
        exps = np.exp(values)  # at most exp(10)
        values -= np.log(exps.mean(axis=0)) / 2
        values -= np.log(exps.mean(axis=1))[:, None] / 2
        return values

    def compared(self, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the information of the stored pairs and of random pairs."""
        rng = np.random.default_rng(0)
        i, c = (rng.integers(0, size, _NULL) for size in information.shape)
        return information[self.position, np.arange(len(self.position))], information[i, c]

    def moved(self, information: np.ndarray) -> float:
        """Estimate the share of the captions that have moved."""
        own, null = self.compared(information)
        return float(np.clip(share_of_random(-own, -null), _LEAST, _MOST))

    def plan(self, information: np.ndarray, rate: float, blocks: int) -> Float32[np.ndarray, "i c"]:
        """Return the share of each caption that goes to each image; overwrites the information.

        Args:
          information: of images and captions.
          rate: share of the captions that have moved.
          blocks: number of blocks; a moved caption's image is in this one with one over it.
        """
        images, captions = information.shape
        counts = np.bincount(self.position, minlength=images)
        if captions > _SIBLINGS * images:
            own, null = self.compared(information)
            if not swap_rates(log_ratio(own, null, rate), self.position).is_apart(_ALONE):
                sums = np.add.reduceat(information, np.cumsum(counts) - counts, axis=1)
                information += sums[:, self.position]
                information /= 2
        # Any image has the same prior, of which plans do not depend; the stored one has more.
        prior = rate / (blocks * images)
        information[self.position, np.arange(captions)] += np.log((1 - rate) / prior + 1)
        fill = [(0, -size % _ROUNDED) for size in information.shape]
        a = np.pad(np.float32(counts / captions), fill[0])
        b = np.pad(np.full(captions, 1 / captions, np.float32), fill[1])
        mass = 1 - rate * (1 - 1 / blocks)
        plan = fixed_plan(np.pad(information, fill), mass, a, b, _STEPS)
        return captions * np.asarray(plan)[:images, :captions]

    def largest(self, shares: Float32[np.ndarray, "i c"]) -> tuple[np.ndarray, ...]:
        """Return the shares to keep, with the places of their images and captions in the fit."""
        i, c = np.nonzero(shares >= _SMALLEST)
        return shares[i, c], i + self.images[0], c + self.captions[0]

    def add_moments(
        self, moments: np.ndarray, z: np.ndarray, y: np.ndarray, plan: np.ndarray
    ) -> None:
        """Add the cross moments of the plan, per inner fold of images and of captions."""
        for key, images, captions in self.cells():
            moments[key] += z[images].T @ (plan[self.within(images, captions)] @ y[captions])


def _joined(parts: Sequence[tuple[np.ndarray, ...]], stored: StoredPairs) -> scipy.sparse.csr_array:
    """Join the shares of all blocks."""
    nothing = np.zeros(0, np.float32), np.zeros(0, int), np.zeros(0, int)
    shares, images, captions = map(np.concatenate, zip(nothing, *parts, strict=True))
    size = len(stored.images), len(stored.captions)
    return scipy.sparse.coo_array((shares, (images, captions)), shape=size).tocsr()


def _stored_moments(
    z: np.ndarray, y: np.ndarray, stored: StoredPairs, weights: np.ndarray
) -> Float[np.ndarray, "f f p q"]:
    moments = np.zeros((_FOLDS, _FOLDS, z.shape[1], y.shape[1]))
    for ends in stored.caption_ends:
        for fold in range(_FOLDS):
            at = slice(*ends[fold : fold + 2])
            moments[fold, fold] += (z[stored.position[at]] * weights[at, None]).T @ y[at]
    return moments


def _models_without(moments: Float[np.ndarray, "f f p q"]) -> dict[tuple[int, int], tuple]:
    """Fit the model that compares images of fold f with captions of fold g, for all f and g."""
    total, of_images, of_captions = moments.sum((0, 1)), moments.sum(1), moments.sum(0)
    return {
        (f, g): _singular(total - of_images[f] - of_captions[g] + moments[f, g])[:2]
        for f in range(_FOLDS)
        for g in range(_FOLDS)
    }


def _singular(
    cross: Float[np.ndarray, "p q"],
) -> tuple[Float32[np.ndarray, "p k"], Float32[np.ndarray, "q k"], Float32[np.ndarray, " k"]]:
    """Return the leading singular vectors, times a power of their values, and the values."""
    flip = cross.shape[0] > cross.shape[1]
    cross = cross.T if flip else cross
    kept = slice(None, -1 - min(COMPONENTS, len(cross)), -1)
    values, left = np.linalg.eigh(cross @ cross.T)
    values, left = np.sqrt(values[kept].clip(1e-18)), left[:, kept]
    right = cross.T @ left / values
    left, right = (right, left) if flip else (left, right)
    scale = (values / values[0]) ** _POWER
    return *(x.astype(np.float32) for x in (left * scale, right * scale)), values.astype(np.float32)


def rematch(pairs: Pairs, posterior: Float[np.ndarray, " pairs"]) -> Rematched:
    """Rematch captions of suspicious pairs with the images that the plan of a model moves them to.

    It is L2RM's rematching in closed form, after a judgement by models that have not seen the
    pairs. The model of the plan has seen all pairs; nothing is judged by it.

    Args:
      pairs: all pairs.
      posterior: probability that each pair is mismatched.

    Returns:
      The rematched pairs, sorted by image and caption. The weight of a pair is the share of the
      caption that goes to the image, times the probability that the caption was mismatched. The
      result is empty with fewer than two suspicious pairs.
    """
    nothing = np.zeros(0, int)
    if (posterior > SUSPICIOUS).sum() < _FEWEST_SUSPICIOUS:
        return Rematched(nothing, nothing, np.zeros(0))
    pairs = as_rows(pairs)
    captions = vector_keys(pairs.captions)
    keys = Keys(vector_keys(pairs.images), captions, captions)
    rows, images, position = keys.sort(np.arange(len(pairs)), pairs.image_of)
    with limit_threads():
        stored = stored_pairs(images, rows, position, keys.image)
        weights = np.maximum(1 - posterior[stored.captions], 1e-6)
        # Weak features as well are rematched better with the ridge of all others (`scenes`, 40% of
        # the sets swapped: 34% of the moved captions reach their image, with the weak ridge 23%).
        ridge = plan_ridge(len(weights), weak=False)
        plan = fit_by_transport(pairs.images, pairs.captions, stored, weights, ridge).plan
    image, caption = stored.images[plan.coords[0]], stored.captions[plan.coords[1]]
    is_new = (image != pairs.image_of[caption]) & (plan.data > _SMALLEST_SHARE)
    image, caption, share = image[is_new], caption[is_new], plan.data[is_new]
    order = np.lexsort((caption, image))
    weight = np.minimum(share, 1) * posterior[caption]
    return Rematched(image[order], caption[order], weight[order].astype(np.float64))
