"""Propose better captions for the images of suspicious pairs, with a probability for each.

Images of suspicious pairs are compared with captions of suspicious pairs: if two captions were
swapped, both partners are among them. A CCA fitted to the other pairs scores them. Partial
transport keeps a caption from going to many images, as in L2RM, but there within a training batch.

The probability that a caption fits follows from the information of the pair and from its densities
over matched pairs and known mismatches. Some captions have no partner in the set; the share that
has one is estimated from the same densities.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.jobs import LOCAL, Executor
from l2rm_jax.judging.content_keys import Keys, places
from l2rm_jax.judging.folds import Folds, fold_pairs
from l2rm_jax.judging.linear import cca_similarity, encode_rows, fitted_pairs, fold_moments
from l2rm_jax.judging.log_odds import Model, compare_fold
from l2rm_jax.judging.rate import Curve, density_ratio
from l2rm_jax.judging.transport import (
    divide,
    forbid,
    plan_blocks,
    row_blocks,
    transport,
    transport_of,
)
from l2rm_jax.linear import cca
from l2rm_jax.linear.cca import Cca, Ridge
from l2rm_jax.linear.rows import Rows, unit_rows
from l2rm_jax.linear.span import ridge_in, span, whole
from l2rm_jax.linear.threads import limit_threads

# Size of a problem: geometric mean of its numbers of images and captions. Up to `MOST_UNITS`, costs
# are computed block by block; the program of a matrix of costs takes 5 s more to compile, so only
# larger problems, split into groups of at most `GROUP`, have matrices.
GROUP, MOST_UNITS = 2048, 12_000
_RIDGE, _POWER = Ridge(0.3, 0.3), 1.0
_TEMPERATURE = 0.05  # of the cosines; also the entropy of the transport
_MOVED = 0.7  # share of the suspicious captions to transport; 0.4 to 0.9 hardly differ
_STEPS = 200


class Proposals(NamedTuple):
    """Captions that may fit better.

    Attributes:
      caption: [pairs, top] rows of captions, the most probable first; -1: none.
      probability: [pairs, top] probability that each fits.
      none_fits: [pairs] probability that no caption fits; NaN without a search for one.
    """

    caption: Int[np.ndarray, "pairs top"]
    probability: Float[np.ndarray, "pairs top"]
    none_fits: Float[np.ndarray, " pairs"]


def propose(
    images: Rows,
    captions: Rows,
    folds: Folds,
    keys: Keys,
    suspicious: Bool[np.ndarray, " pairs"],
    posterior_set: Float[np.ndarray, " pairs"],
    top: int,
    seed: int,
    executor: Executor = LOCAL,
) -> Proposals:
    """Propose, for the image of each suspicious pair, captions of other suspicious pairs.

    Nothing is proposed if fewer than two images have suspicious pairs, or if the other pairs would
    be fewer than one fold.

    Args:
      images: [images, di] vectors.
      captions: [pairs, dc] vectors.
      folds: fold and group of each image.
      keys: content hashes, by which images and captions are sorted.
      suspicious: [pairs] whether each pair is suspicious; the model is fitted to the others.
      posterior_set: [pairs] probability that all captions of the image are mismatched together,
        in [0, 1]. The higher it is, the more the vectors of these captions are averaged.
      top: captions to propose for each pair, 0 or more.
      seed: seed of the samples and of the split into groups, 0 or more.
      executor: solves the problem of each group.
    """
    found = Proposals(
        np.full((len(suspicious), top), -1),
        np.zeros((len(suspicious), top), np.float32),
        np.full(len(suspicious), np.nan, np.float32),
    )
    rows = np.flatnonzero(suspicious)
    too_many = suspicious.mean() > 1 - 1 / folds.count
    if not top or len(np.unique(folds.image_of[rows])) < 2 or too_many:
        return found
    rows, shown, position = keys.sort(rows, folds.image_of)
    mass = np.bincount(position)
    model, curve = executor.once(
        lambda: _fit(images, captions, folds, keys, ~suspicious, seed),
        like=(Cca(0, 0, 0, 0, 0), Curve(0, 0)),
    )
    image_codes = np.asarray(encode_rows(model.encode_images, images, shown))
    caption_codes = np.asarray(encode_rows(model.encode_captions, captions, rows))
    caption_codes = _pooled(caption_codes, position, mass, posterior_set[rows])
    size = math.sqrt(len(shown) * len(rows))
    groups = divide(image_codes, caption_codes, MOST_UNITS if size <= MOST_UNITS else GROUP, seed)
    shape = None
    if len(groups) > 1:
        shape = tuple(max(map(len, side)) for side in zip(*groups, strict=True))
    calls = (
        (image_codes[i], caption_codes[c], mass[i], places(i, position[c]), curve, shape, top)
        for i, c in groups
    )
    results = zip(groups, executor.map(_best_within, calls, like=(0, 0, 0)), strict=True)
    with progress_bar(len(rows), "proposals") as bar:
        for (i, c), (best, value, none) in results:
            at, width = places(i, position), best.shape[1]
            here = np.flatnonzero(at >= 0)
            of = at[here]
            found.caption[rows[here], :width] = np.where(value[of] > 0, rows[c[best[of]]], -1)
            found.probability[rows[here], :width] = value[of]
            found.none_fits[rows[here]] = none[of]
            bar.update(len(here))
    return found


def _fit(
    images: Rows,
    captions: Rows,
    folds: Folds,
    keys: Keys,
    trusted: Bool[np.ndarray, " pairs"],
    seed: int,
) -> tuple[Cca, Curve]:
    """Fit a model to the trusted pairs, and the density ratio of matched to mismatched pairs.

    The densities come from trusted pairs scored by such models fitted to the other folds.
    """
    of_images, of_captions = span(images), span(captions)
    images, captions = of_images.rows, of_captions.rows
    ridge = ridge_in(_RIDGE, of_images, of_captions)
    drawn = fitted_pairs(fold_pairs(folds, keys, seed, trusted), images, captions)
    parts = fold_moments(images, captions, folds.image_of, drawn)
    total, matched, wrong = sum(parts.values()), [], []
    for fold, here in drawn.items():
        model = cca.fit(total - parts[fold], images.shape[1], ridge, power=_POWER)
        similarity = cca_similarity(model, images, captions)
        found = compare_fold(here, Model(similarity, _TEMPERATURE))
        matched.append(found.stored.mean)
        wrong.append(found.wrong.mean.ravel())
    curve = density_ratio(np.concatenate(wrong), np.concatenate(matched))
    model = cca.fit(total, images.shape[1], ridge, power=_POWER)
    return whole(model, of_images, of_captions), curve


def _pooled(codes, position, mass, posterior_set) -> Float[np.ndarray, "n k"]:
    """Blend each caption code with its siblings' mean, weighted by P(whole set swapped)."""
    total = np.zeros((len(mass), codes.shape[1]), np.float32)
    np.add.at(total, position, codes)
    others = (total[position] - codes) / np.maximum(mass[position] - 1, 1)[:, None]
    weight = np.where(mass[position] > 1, posterior_set, 0)[:, None]
    return unit_rows(codes + weight * others)


def _best_within(
    image_codes: Float[np.ndarray, "I k"],
    caption_codes: Float[np.ndarray, "J k"],
    mass: Int[np.ndarray, " I"],
    own: Int[np.ndarray, " J"],
    curve: Curve,
    shape: tuple[int, int] | None,
    top: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the best captions of each image, their probabilities, and the probability of none.

    The probability that a caption fits an image is the probability that the caption's true image
    is in the set, from the densities, times the share of the caption that is transported there.

    Args:
      image_codes: unit vectors.
      caption_codes: unit vectors.
      mass: most captions that each image takes.
      own: place of the image stored with each caption; -1 if it is not in this group.
      curve: density ratio of matched to mismatched pairs.
      shape: rows and columns of the cost matrix; None to compute costs block by block.
      top: captions per image.
    """
    with limit_threads():  # the same bytes for any number of threads
        is_there = _share_there(_mean_ratio(image_codes, caption_codes, own, curve))
        if shape is None:
            plan = transport_of(image_codes, caption_codes, mass, own, _MOVED, _TEMPERATURE)
            moved = 0 if plan is None else np.asarray(plan.columns_moved)
            blocks = () if plan is None else plan_blocks(plan)
        else:
            costs = 1 - image_codes @ caption_codes.T
            plan = transport(costs, mass, own, _MOVED, _TEMPERATURE, shape)
            moved = plan.sum(axis=0)
            blocks = ((rows, plan[rows]) for rows in row_blocks(len(plan)))
        scale = is_there / np.maximum(moved, 1e-12)
        best = np.zeros((len(image_codes), min(top, len(caption_codes))), int)
        value, none = np.zeros(best.shape), np.ones(len(best))
        for rows, block in blocks:
            best[rows], value[rows], none[rows] = _best_of(scale * block, best.shape[1])
    return best, value, none


def _best_of(
    probability: Float[np.ndarray, "r J"], top: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return columns and values of each row's largest probabilities, and P(none of them)."""
    largest = np.sort(np.argpartition(-probability, top - 1, axis=1)[:, :top], axis=1)
    value = np.take_along_axis(probability, largest, axis=1)
    order = np.argsort(-value, axis=1, kind="stable")
    none = np.exp(np.log1p(-probability.clip(max=1 - 1e-6)).sum(axis=1))
    return *(np.take_along_axis(x, order, axis=1) for x in (largest, value)), none


def _mean_ratio(
    image_codes: Float[np.ndarray, "I k"],
    caption_codes: Float[np.ndarray, "J k"],
    own: Int[np.ndarray, " J"],
    curve: Curve,
) -> Float[np.ndarray, " J"]:
    """Return the mean density ratio of each caption over all images but its own."""
    images, captions = len(image_codes), len(caption_codes)
    forbidden = np.bincount(own[own >= 0], minlength=images)
    of_captions, of_images = np.zeros(captions), np.zeros(images)
    for rows in row_blocks(images):
        likely = np.exp(image_codes[rows] @ caption_codes.T / _TEMPERATURE)  # at most exp(20)
        forbid(likely, own, rows, 0)
        of_captions += likely.sum(axis=0)
        of_images[rows] = likely.sum(axis=1)
    others = np.maximum(images - (own >= 0), 1), np.maximum(captions - forbidden, 1)
    of_captions, of_images = (
        np.log(np.maximum(total / count, 1e-30)).astype(np.float32)
        for total, count in zip((of_captions, of_images), others, strict=True)
    )
    ratio = np.zeros(captions)
    for rows in row_blocks(images):
        cosines = image_codes[rows] @ caption_codes.T
        information = cosines / _TEMPERATURE - (of_captions + of_images[rows, None]) / 2
        found = curve.at(information)
        forbid(found, own, rows, 0)
        ratio += found.sum(axis=0)
    return ratio / others[0]


def _share_there(ratio: Float[np.ndarray, " J"]) -> Float[np.ndarray, " J"]:
    """Estimate by expectation-maximisation whether the true image of each caption is in the set.

    Args:
      ratio: mean over the images of the density ratio of matched to mismatched pairs.
    """
    share = 0.5
    for _ in range(_STEPS):
        is_there = share * ratio / (1 - share + share * ratio)
        share = float(np.clip(is_there.mean(), 1e-6, 1 - 1e-6))
    return is_there
