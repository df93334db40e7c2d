"""Captions of doubted pairs and images of doubted pairs, by transport: none is chosen too often."""

import logging
import math

import numpy as np
from jaxtyping import Bool, Float, Int

from l2rm_jax.linear.set_features import cluster
from l2rm_jax.ot import partial_sinkhorn

_ERROR = 1e-4  # of the marginals, as a share of the mass
_ITERATIONS = 10_000
_ROOM = 1.2  # a group is so much larger than the mean, at most
_log = logging.getLogger(__name__)


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
      costs: cost of each image with each caption, at least 0.
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
    images: Float[np.ndarray, "I D"], captions: Float[np.ndarray, "J D"], size: int, seed: int
) -> list[tuple[Int[np.ndarray, " i"], Int[np.ndarray, " j"]]]:
    """Divide images and captions into groups that are likely to hold what belongs together.

    Groups are clusters of the images' vectors; images and captions join the group whose centre is
    the most similar. One that would hold more than `_ROOM` times the mean keeps those that fit
    best, and the others go to their next group.

    Args:
      images: unit vectors.
      captions: unit vectors.
      size: images and captions of a group, their geometric mean, at most.
      seed: seed of the clusters.

    Returns:
      Places of the images and of the captions of each group; each place is in exactly one.
    """
    total = math.sqrt(len(images) * len(captions))
    if total <= size:
        return [(np.arange(len(images)), np.arange(len(captions)))]
    count = min(math.ceil(_ROOM * total / size), len(images), len(captions))
    centres = cluster(images, count, np.random.default_rng(seed))
    group_of = [
        _assign(vectors @ centres.T, math.ceil(_ROOM * len(vectors) / count))
        for vectors in (images, captions)
    ]
    groups = [tuple(np.flatnonzero(group == k) for group in group_of) for k in range(count)]
    return [(i, j) for i, j in groups if len(i) and len(j)]


def _assign(fits: Float[np.ndarray, "J G"], room: int) -> Int[np.ndarray, " J"]:
    """The group of each row: the best one that has room, by deferred acceptance.

    A full group keeps the rows that fit it best. A rejected row never asks it again. This ends, as
    all groups together have room for more than all rows.
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
