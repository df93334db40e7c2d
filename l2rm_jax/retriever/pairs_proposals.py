"""Captions for the images of mismatched pairs, by transport over the whole training set.

A step of L2RM rematches the mismatched pairs of one batch. Here the images of all pairs called
mismatched meet the captions of all these pairs. An image has as much mass as it has such pairs, a
caption has one unit. Costs are those of the step (learned, or `1 - cosine`) without dropout; of a
learned cost, the part that treats all captions alike counts (`even_part`). Half of the mass moves:
`l2rm.rho`, the share in a batch, would be too little here, where more images meet a caption that
fits; if all of it moved, the shares would not say which proposals are the better ones. No caption
goes to the image that it is stored with, whatever `l2rm.mask` says.

A plan is dense. A set too large for one plan of `ENTRIES` entries (some 0.4 GB) is divided into
groups that are solved one by one. Similar images form a group, and a caption joins the group of the
image that its vector fits best, so it can only go to an image of that group. On 6,410 captions of
Flickr8k, 1 plan, 4 and 8 groups proposed the right image's caption 143, 138 and 124 times; groups
at random 100 (4) and 69 (8) times.

References:
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

import logging
import math
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.methods.base import mean_vectors
from l2rm_jax.methods.cost import MINIMUM, cost_of_set
from l2rm_jax.methods.rcsl import embed
from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.run import Run

ENTRIES = 4096**2  # largest size of a plan, images x captions
MOVED = 0.5  # share of the mass that moves, of what can
SMALLEST_SHARE = 0.01  # of a caption: a caption of which less goes to an image is not proposed
_ROOM = 1.5  # most captions of a group, as a multiple of the mean
_ERROR = 1e-4  # of the marginals of a plan, as a share of the mass
_ITERATIONS = 10_000
_OWN = -1e9  # in place of the similarity of a caption with its own image
_BLOCK = 1 << 24  # similarities computed at once while groups are formed

_log = logging.getLogger(__name__)


class Proposals(NamedTuple):
    """The caption that transport proposes for the image of each pair.

    Attributes:
      caption: row of the caption among all pairs; -1 where none is proposed.
      share: share of that caption's mass that goes to the image, in [0, 1].
    """

    caption: Int[np.ndarray, " pairs"]
    share: Float[np.ndarray, " pairs"]


class Group(NamedTuple):
    """Images and captions of one transport problem, by their positions in the whole set."""

    images: Int[np.ndarray, " I"]
    captions: Int[np.ndarray, " J"]


def propose(
    run: Run, pairs: PairDataset, doubted: Int[np.ndarray, " doubted"], entries: int = ENTRIES
) -> Proposals:
    """Propose captions for the images of doubted pairs.

    An image with n doubted pairs gets the n captions of which it takes the most, in that order.

    Args:
      run: a run of the method `l2rm`, with the model that scores.
      pairs: the training pairs.
      doubted: rows of the pairs called mismatched, ascending.
      entries: largest size of a plan; tests take less.

    Raises:
      DivergedError: similarities are not finite.
    """
    settings, chosen = run.config.l2rm, pairs.take(doubted)
    images, image_of, mass = np.unique(chosen.stored_image, return_inverse=True, return_counts=True)
    groups = [Group(np.arange(len(images)), np.arange(len(chosen)))]
    is_cosine, is_large = settings.cost == "cosine", len(images) * len(chosen) > entries
    if is_cosine or is_large:
        vectors = run.score_pairs(0, chosen)(partial(_mean if is_cosine else embed, run.model))
        codes = vectors["images"][np.unique(image_of, return_index=True)[1]], vectors["captions"]
    if is_large:
        count = math.ceil(math.sqrt(_ROOM * len(images) * len(chosen) / entries))
        groups = divide(*codes, image_of, min(count, len(images)))
    shape = [max(map(len, side)) for side in zip(*groups, strict=True)]

    def costs(group: Group) -> Float[np.ndarray, "I J"]:
        if is_cosine:
            return 1 - codes[0][group.images] @ codes[1][group.captions].T
        # Filled up, so that one compiled program scores all groups.
        filled = np.pad(group.images, (0, shape[0] - len(group.images)), mode="edge")
        sims = run.score(chosen.cross(images[filled], group.captions))
        return np.asarray(_cost_of_set(run.own_state["cost"], sims[: len(group.images)]))

    caption, share = np.full(len(pairs), -1), np.zeros(len(pairs))
    rows_of = np.split(doubted[np.argsort(image_of, kind="stable")], np.cumsum(mass)[:-1])
    with progress_bar(len(images), "rematching", unit="images") as bar:
        for group in groups:
            allowed = group.images[:, None] != image_of[group.captions]
            shares = transport(
                np.maximum(costs(group), MINIMUM),
                mass[group.images],
                allowed,
                MOVED,
                settings.epsilon,
                shape,
            )
            for image, row in zip(group.images, shares, strict=True):
                best = np.argsort(-row, kind="stable")[: mass[image]]
                best = best[row[best] >= SMALLEST_SHARE]
                own = rows_of[image][: len(best)]
                caption[own], share[own] = doubted[group.captions[best]], row[best]
            bar.update(len(group.images))
    return Proposals(caption, share)


def _mean(model, state, batch) -> dict[str, jax.Array]:
    """Mean region and mean word of each pair, as unit vectors."""
    images, captions = mean_vectors(model, state, batch)
    return {"images": images, "captions": captions}


_cost_of_set = jax.jit(cost_of_set)


def transport(
    costs: Float[np.ndarray, "I J"],
    mass: Int[np.ndarray, " I"],
    allowed: Bool[np.ndarray, "I J"],
    share: float,
    epsilon: float,
    shape: tuple[int, int],
) -> Float[np.ndarray, "I J"]:
    """Shares of each caption that go to the images.

    Args:
      costs: cost of each image with each caption, > 0.
      mass: most that each image can take, in captions.
      allowed: False where a caption may not go to an image; at most one image for each caption.
      share: share of the largest possible mass that moves, in (0, 1].
      epsilon: strength of the entropy.
      shape: numbers of rows and columns to fill up to, so that all groups have one shape.
    """
    possible = movable(mass, allowed)
    if possible == 0:
        return np.zeros(costs.shape)
    (images, captions), weights = costs.shape, [np.zeros(size, np.float32) for size in shape]
    weights[0][:images], weights[1][:captions] = mass, 1
    fill = [(0, size - used) for size, used in zip(shape, costs.shape, strict=True)]
    result = partial_sinkhorn(
        np.pad(costs, fill),
        share * possible,
        epsilon=epsilon,
        a=weights[0],
        b=weights[1],
        mask=np.pad(allowed, fill),
        threshold=_ERROR,
        max_iterations=_ITERATIONS,
    )
    if not result.converged:
        _log.warning(
            "rematching %d captions: the transport did not converge in %d iterations; the "
            "marginals of its plan are off by %.1g of the mass",
            captions,
            int(result.iterations),
            float(result.marginal_error),
        )
    return np.asarray(result.plan)[:images, :captions]


def movable(mass: Int[np.ndarray, " I"], allowed: Bool[np.ndarray, "I J"]) -> int:
    """The most mass that images can take from captions of one unit each.

    By Hall's theorem: a caption is forbidden for at most one image, so only all captions together,
    or those forbidden for the same image, can be more than the other images take.
    """
    forbidden, total = (~allowed).sum(axis=1), int(mass.sum())
    too_many = max(allowed.shape[1] - total, int((forbidden - (total - mass)).max()), 0)
    return allowed.shape[1] - too_many


def divide(
    images: Float[np.ndarray, "I D"],
    captions: Float[np.ndarray, "J D"],
    image_of: Int[np.ndarray, " J"],
    count: int,
) -> list[Group]:
    """Divide images and captions into groups that are likely to hold what belongs together.

    The images are halved, again and again, where they differ the most. A caption joins the group of
    the image with the largest product of vectors, its own image aside; a group that would hold more
    than `_ROOM` times the mean keeps those that fit best, and the others go to their next group.

    Args:
      images: a vector of each image.
      captions: a vector of each caption.
      image_of: the image that each caption is stored with.
      count: number of groups, at most that of the images.

    Returns:
      The groups; each image and each caption is in exactly one of them.
    """
    parts = _halve(images, np.arange(len(images)), count)
    order, starts = np.concatenate(parts), np.cumsum([0, *map(len, parts[:-1])])
    own, ordered = np.argsort(order)[image_of], images[order].T
    fits = np.empty((len(captions), count), np.float32)
    size = max(1, _BLOCK // len(images))
    for start in range(0, len(captions), size):
        block = slice(start, start + size)
        sims = captions[block] @ ordered
        sims[np.arange(len(sims)), own[block]] = _OWN
        fits[block] = np.maximum.reduceat(sims, starts, axis=1)
    group = _assign(fits, math.ceil(_ROOM * len(captions) / count))
    return [Group(np.sort(part), np.flatnonzero(group == k)) for k, part in enumerate(parts)]


def _halve(
    vectors: Float[np.ndarray, "I D"], rows: Int[np.ndarray, " n"], count: int
) -> list[Int[np.ndarray, " m"]]:
    """Divide rows into `count` parts of nearly equal size along their leading directions."""
    if count == 1:
        return [rows]
    centred = vectors[rows] - vectors[rows].mean(axis=0)
    direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    rows = rows[np.argsort(centred @ direction, kind="stable")]
    cut = len(rows) * (count // 2) // count
    return [
        *_halve(vectors, rows[:cut], count // 2),
        *_halve(vectors, rows[cut:], count - count // 2),
    ]


def _assign(fits: Float[np.ndarray, "J G"], room: int) -> Int[np.ndarray, " J"]:
    """The group of each caption: the best one that has room, by deferred acceptance.

    A full group keeps the captions that fit it best. A rejected caption never asks it again. This
    ends, as all groups together have room for more than all captions.
    """
    fits = fits.copy()
    while True:
        group = fits.argmax(axis=1)
        full = np.flatnonzero(np.bincount(group, minlength=fits.shape[1]) > room)
        if not len(full):
            return group
        for k in full:
            members = np.flatnonzero(group == k)
            rejected = members[np.argsort(-fits[members, k], kind="stable")[room:]]
            fits[rejected, k] = -np.inf
