"""Rematching: the images and captions of doubted pairs, combined anew by transport.

Cross-fitting doubts a pair whose posterior is below one half. Its image may fit the caption of
another doubted pair. The cosines of the weighted CCA say which, and optimal transport lets no image
and no caption be chosen too often: L2RM's rematching in closed form, after a split by models that
have not seen the pairs.

References:
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.crossfit.level import unit_of_pair
from l2rm_jax.crossfit.linear import encode_rows, fit_weighted
from l2rm_jax.crossfit.rows import Rows
from l2rm_jax.data.pairs import Rematched
from l2rm_jax.errors import DivergedError
from l2rm_jax.ot import partial_sinkhorn

DOUBTED = 0.5  # a unit with a lower posterior is rematched
GROUP = 4096  # units of one transport problem: some 0.4 GB
_EPSILON = 0.02  # entropy of the transport; the cost is 1 - cosine
_SMALLEST_SHARE = 0.1  # of a unit: what goes to an image in smaller shares is dropped
_ERROR = 1e-5  # of the marginals, as a share of the mass


def rematch(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    posterior: Float[np.ndarray, " pairs"],
    level: str,
    *,
    seed: int = 0,
) -> Rematched:
    """Combine the images of doubted pairs with the captions of doubted pairs.

    Units are captions, or at the level of the image the captions stored with one, whose code is
    their mean. Each doubted unit is one unit of mass, and an image takes as much as it had before.
    A transport plan is dense, so more than `GROUP` units are divided at random into groups, each
    solved by itself: with k of them, a caption meets only one k-th of the images.

    Args:
      images: [images, di] vectors.
      captions: [pairs, dc] vectors.
      pair_image: row of the image that each caption is stored with.
      posterior: probability that each pair is matched.
      level: "pair" or "image", as in the judgement that gave the posterior.
      seed: seed of the division into groups.

    Returns:
      The rematched pairs alone, by image and caption. Their weight is the share of the unit that
      goes to the image, times the probability that the unit was mismatched. With fewer than two
      doubted units there are none.

    Raises:
      ConfigError: an unknown level.
      DivergedError: a transport did not converge.
    """
    unit = unit_of_pair(pair_image, level)
    doubt = 1 - np.bincount(unit, posterior) / np.bincount(unit)
    pairs = np.flatnonzero(doubt[unit] > 1 - DOUBTED)
    units, first, position = np.unique(unit[pairs], return_index=True, return_inverse=True)
    if len(units) < 2:
        nothing = np.zeros(0, int)
        return Rematched(nothing, nothing, np.zeros(0))
    unit_image = pair_image[pairs[first]]
    model = fit_weighted(images, captions, pair_image, posterior)
    image_rows = np.unique(unit_image)
    image_codes = np.asarray(encode_rows(model.encode_images, images, image_rows))
    codes = np.asarray(encode_rows(model.encode_captions, captions, pairs))
    sizes = np.bincount(position)
    by_unit = np.argsort(position, kind="stable")
    starts = np.cumsum(sizes) - sizes
    unit_codes = np.add.reduceat(codes[by_unit], starts) / sizes[:, None]
    parts = []
    count = -(-len(units) // GROUP)
    for group in np.array_split(np.random.default_rng(seed).permutation(len(units)), count):
        shown, mass = np.unique(unit_image[group], return_counts=True)
        of_images = image_codes[np.searchsorted(image_rows, shown)]
        shares = transport(of_images, unit_codes[group], mass, -(-len(units) // count))
        i, u = np.nonzero(shares > _SMALLEST_SHARE)
        parts.append((shown[i], group[u], shares[i, u]))
    image, of_unit, share = map(np.concatenate, zip(*parts, strict=True))
    weight = np.minimum(share, 1) * doubt[units[of_unit]]
    members = np.split(pairs[by_unit], starts[1:])
    caption = np.concatenate([members[u] for u in of_unit] or [np.zeros(0, int)])
    image, weight = (np.repeat(x, sizes[of_unit]) for x in (image, weight))
    order = np.lexsort((caption, image))
    return Rematched(image[order], caption[order], weight[order])


def transport(
    image_codes: Float[np.ndarray, "images c"],
    unit_codes: Float[np.ndarray, "units c"],
    mass: Int[np.ndarray, " images"],
    size: int,
) -> Float[np.ndarray, "images units"]:
    """Return the shares of each unit that go to the images: they add up to 1.

    Args:
      image_codes: unit vectors.
      unit_codes: vectors of at most that length.
      mass: what each image takes; adds up to the number of units.
      size: rows and columns that both sides are filled up to, so that all groups have one shape.

    Raises:
      DivergedError: the transport did not converge.
    """
    shape, weights = (len(image_codes), len(unit_codes)), np.zeros((2, size), np.float32)
    weights[0, : shape[0]], weights[1, : shape[1]] = mass, 1
    filled = (np.pad(x, ((0, size - len(x)), (0, 0))) for x in (image_codes, unit_codes))
    result = partial_sinkhorn(
        _costs(*filled), shape[1], epsilon=_EPSILON, a=weights[0], b=weights[1], threshold=_ERROR
    )
    if not result.converged:
        raise DivergedError(
            f"rematching {shape[1]} doubted units: the transport did not converge, its marginals "
            f"are off by {float(result.marginal_error):.1g} of the mass after "
            f"{int(result.iterations)} iterations",
            hint="--config.train.draw=posterior",
        )
    return np.asarray(result.plan)[: shape[0], : shape[1]]


@jax.jit
def _costs(images: jax.Array, units: jax.Array) -> jax.Array:
    return 1 - jnp.matmul(images, units.T, precision="highest")
