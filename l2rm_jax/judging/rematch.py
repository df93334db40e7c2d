"""Rematch images and captions of suspicious pairs by transport.

The image of a suspicious pair may fit the caption of another suspicious pair. The cosines of the
weighted CCA show which, and optimal transport keeps an image or a caption from being chosen too
often: L2RM's rematching in closed form, after a split by models that have not seen the pairs.

References:
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.data.train_pairs import Rematched
from l2rm_jax.data.vectors import as_rows
from l2rm_jax.judging.linear import encode_rows, fit_weighted
from l2rm_jax.judging.transport import plan_blocks, transport, transport_of

# Units of one problem. Up to `GROUP`, costs are a matrix (about 0.4 GB); up to `MOST_UNITS`, they
# are computed block by block; more units are split into groups.
GROUP, MOST_UNITS = 4096, 12_000
_EPSILON = 0.02  # entropy of the transport; the cost is 1 - cosine
_SMALLEST_SHARE = 0.1  # of a unit: smaller shares are dropped


def rematch(
    pairs: Pairs,
    posterior: Float[np.ndarray, " pairs"],
    posterior_set: Float[np.ndarray, " pairs"],
    *,
    seed: int = 0,
) -> Rematched:
    """Rematch the images of suspicious pairs with the captions of suspicious pairs.

    A unit is a caption, or all captions of an image that seem to be mismatched together, with their
    mean as code. Each suspicious unit has a mass of one, and each image receives as much mass as it
    had before. More than `MOST_UNITS` units are split at random into k groups that are solved
    separately, so a caption is compared with only one k-th of the images.

    Args:
      pairs: all pairs.
      posterior: probability that each pair is mismatched.
      posterior_set: probability that all captions of its image are mismatched together.
      seed: seed of the split into groups.

    Returns:
      Only the rematched pairs, sorted by image and caption. The weight of a pair is the share of
      the unit that goes to the image, times the probability that the unit was mismatched. The
      result is empty with fewer than two suspicious units.
    """
    pairs = as_rows(pairs)
    image_of = pairs.image_of
    together = posterior_set > SUSPICIOUS
    images = pairs.images.shape[0]
    of_pair = np.where(together, image_of, images + np.arange(len(image_of)))
    unit = np.unique(of_pair, return_inverse=True)[1]
    suspicion = np.bincount(unit, posterior) / np.bincount(unit)
    rows = np.flatnonzero(suspicion[unit] > SUSPICIOUS)
    units, first, position = np.unique(unit[rows], return_index=True, return_inverse=True)
    if len(units) < 2:
        nothing = np.zeros(0, int)
        return Rematched(nothing, nothing, np.zeros(0))
    unit_image = image_of[rows[first]]
    model = fit_weighted(pairs.images, pairs.captions, image_of, 1 - posterior)
    image_rows = np.unique(unit_image)
    image_codes = np.asarray(encode_rows(model.encode_images, pairs.images, image_rows))
    codes = np.asarray(encode_rows(model.encode_captions, pairs.captions, rows))
    sizes = np.bincount(position)
    by_unit = np.argsort(position, kind="stable")
    starts = np.cumsum(sizes) - sizes
    unit_codes = np.add.reduceat(codes[by_unit], starts) / sizes[:, None]
    parts, count = [], 1 if len(units) <= MOST_UNITS else -(-len(units) // GROUP)
    size = -(-len(units) // count)  # of all groups, so that they have one shape
    for group in np.array_split(np.random.default_rng(seed).permutation(len(units)), count):
        shown, mass = np.unique(unit_image[group], return_counts=True)
        codes_of_images = image_codes[np.searchsorted(image_rows, shown)]
        for start, shares in _plan(codes_of_images, unit_codes[group], mass, size):
            i, u = np.nonzero(shares > _SMALLEST_SHARE)
            parts.append((shown[start + i], group[u], shares[i, u]))
    image, of_unit, share = map(np.concatenate, zip(*parts, strict=True))
    weight = np.minimum(share, 1) * suspicion[units[of_unit]]
    members = np.split(rows[by_unit], starts[1:])
    caption = np.concatenate([members[u] for u in of_unit] or [np.zeros(0, int)])
    image, weight = (np.repeat(x, sizes[of_unit]) for x in (image, weight))
    order = np.lexsort((caption, image))
    return Rematched(image[order], caption[order], weight[order])


def _plan(
    images: Float[np.ndarray, "I k"],
    units: Float[np.ndarray, "U k"],
    mass: Int[np.ndarray, " I"],
    size: int,
) -> Iterator[tuple[int, Float[np.ndarray, "r U"]]]:
    """Yield blocks of rows of the plan (share of each unit per image), with the first row."""
    if size <= GROUP:
        costs = 1 - images @ units.T
        everywhere = np.ones(costs.shape, bool)
        yield 0, transport(costs, mass, everywhere, 1.0, _EPSILON, (size, size))
        return
    nowhere = np.full(len(units), -1)
    plan = transport_of(images, units, mass, nowhere, 1.0, _EPSILON)
    if plan is not None:
        yield from ((rows.start, shares) for rows, shares in plan_blocks(plan))
