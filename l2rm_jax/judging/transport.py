"""Assign captions of suspicious pairs to images of suspicious pairs by partial transport."""

import logging
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.linear.set_features import cluster
from l2rm_jax.ot import partial_sinkhorn, partial_sinkhorn_of
from l2rm_jax.ot.vectors import PlanOfVectors

_ERROR = 1e-4  # of the marginals, as a share of the mass
_ITERATIONS = 10_000
_ERROR_OF_VECTORS, _ITERATIONS_OF_VECTORS = 1e-3, 200
_ROWS = 256  # rows of a plan per block
_ROOM = 1.2  # largest size of a group, relative to the mean
_log = logging.getLogger(__name__)


def transport(
    costs: Float[np.ndarray, "I J"],
    mass: Int[np.ndarray, " I"],
    own: Int[np.ndarray, " J"],
    share: float,
    epsilon: float,
    shape: tuple[int, int],
) -> Float[np.ndarray, "I J"]:
    """Return the share of each caption that goes to each image.

    Args:
      costs: cost of each image with each caption, at least 0.
      mass: most that each image can take, in captions.
      own: the image that each caption may not go to; -1: none.
      share: share of the largest possible mass that moves, in (0, 1].
      epsilon: strength of the entropy.
      shape: numbers of rows and columns to pad to, so that all groups have one shape.
    """
    possible = movable(mass, own)
    if possible == 0:
        return np.zeros(costs.shape)
    (images, captions), weights = costs.shape, [np.zeros(size, np.float32) for size in shape]
    weights[0][:images], weights[1][:captions] = mass, 1
    fill = [(0, size - used) for size, used in zip(shape, costs.shape, strict=True)]
    allowed = own != np.arange(images)[:, None]
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
    _warn_unless_converged(result, captions, result.marginal_error)
    return np.asarray(result.plan)[:images, :captions]


def transport_of(
    images: Float[np.ndarray, "I D"],
    captions: Float[np.ndarray, "J D"],
    mass: Int[np.ndarray, " I"],
    own: Int[np.ndarray, " J"],
    share: float,
    epsilon: float,
) -> PlanOfVectors | None:
    """Solve the problem of `transport` between unit vectors; costs are one minus the cosine.

    No matrix of costs is in memory. The other arguments are those of `transport`.

    Returns:
      The plan, to be read by `plan_blocks`; None if nothing can move.
    """
    possible = movable(mass, own)
    if possible == 0:
        return None
    result = partial_sinkhorn_of(
        images,
        captions,
        share * possible,
        epsilon=epsilon,
        a=mass.astype(np.float32),
        b=np.ones(len(captions), np.float32),
        own=own.astype(np.int32),
        threshold=_ERROR_OF_VECTORS,
        max_iterations=_ITERATIONS_OF_VECTORS,
    )
    _warn_unless_converged(result, len(captions), result.error)
    return result


def plan_blocks(plan: PlanOfVectors) -> Iterator[tuple[slice, Float[np.ndarray, "r J"]]]:
    """Yield rows of a plan between unit vectors, block by block."""
    images, captions, own, epsilon = map(np.asarray, plan.vectors)
    log_rows, log_columns = np.asarray(plan.log_rows), np.asarray(plan.log_columns)
    for rows in row_blocks(len(images)):
        log_plan = (images[rows] @ captions.T - 1) / epsilon
        log_plan += log_columns
        log_plan += log_rows[rows, None]
        forbid(log_plan, own, rows, -np.inf)
        yield rows, np.exp(log_plan)


def row_blocks(count: int) -> Iterator[slice]:
    """Yield slices of at most `_ROWS` rows."""
    return (slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS))


def forbid(
    block: Float[np.ndarray, "r J"], own: Int[np.ndarray, " J"], rows: slice, value: float
) -> None:
    """Write `value` where a caption is paired with its own image, in a block of rows."""
    captions = np.flatnonzero((own >= rows.start) & (own < rows.stop))
    block[own[captions] - rows.start, captions] = value


def _warn_unless_converged(result, captions: int, error: float) -> None:
    if not result.converged:
        _log.warning(
            "rematching %d captions: the transport did not converge in %d iterations; the "
            "marginals of its plan are off by %.1g of the mass",
            captions,
            int(result.iterations),
            float(error),
        )


def movable(mass: Int[np.ndarray, " I"], own: Int[np.ndarray, " J"]) -> int:
    """Return the largest mass that images can take from captions of one unit each.

    By Hall's theorem: each caption is forbidden for at most one image. So only all captions
    together, or all captions forbidden for one image, can exceed the capacity of the images left.

    Args:
      mass: most that each image can take.
      own: the image that each caption may not go to; -1: none.
    """
    total, forbidden = int(mass.sum()), np.bincount(own[own >= 0], minlength=len(mass))
    too_many = max(len(own) - total, int((forbidden - (total - mass)).max()), 0)
    return len(own) - too_many


def divide(
    images: Float[np.ndarray, "I D"], captions: Float[np.ndarray, "J D"], size: int, seed: int
) -> list[tuple[Int[np.ndarray, " i"], Int[np.ndarray, " j"]]]:
    """Split images and captions into groups so that partners are likely to share a group.

    Groups are clusters of the image vectors; images and captions join the group with the most
    similar centre. A group that would exceed `_ROOM` times the mean size keeps the best members and
    sends the rest to their next best group.

    Args:
      images: unit vectors.
      captions: unit vectors.
      size: largest geometric mean of the numbers of images and captions of a group.
      seed: seed of the clusters.

    Returns:
      Places of the images and of the captions of each group; each place is in exactly one group.
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
    """Assign each row to its best group with room, by deferred acceptance.

    A full group keeps the rows that fit it best. A rejected row never returns to it. The loop ends
    because all groups together have room for more than all rows.
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
