"""Threshold of NAAF, between the cosines of matched and of mismatched words.

Samples come from captions whose own image scores highest: the largest cosine of each word with the
regions of that image is a matched sample, and with the regions of the lowest scoring image a
mismatched sample. With a normal distribution for each kind, the threshold t solves
`p(t | matched) = 2 p(t | mismatched)`, and the safe threshold is three standard deviations below
the mean of the matched samples. New values have the weight 0.7, old ones 0.3.

- "paper": a batch is scored with the threshold of the previous batches, then updates it once.
- "code" follows the public code: the captions of a batch are scored one after the other, longest
  first, and each caption that adds samples updates the threshold. Every batch starts without
  samples, and until it has 200 words, both thresholds are 0 after each caption. So the position of
  a caption in its batch matters, and the first caption is scored with the last threshold of the
  previous batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import safe_sqrt

THRESHOLDS = ("paper", "code")  # values of `naaf.threshold`
FEWEST_WORDS = 200  # sampled words needed to update the threshold
ALPHA = 2.0  # cost of taking a mismatched word for a matched one, relative to the reverse
NEW_SHARE = 0.7


class Thresholds(NamedTuple):
    """Threshold for training and safe threshold for evaluation; both in [0, 1]."""

    threshold: Float[Array, ""]
    safe: Float[Array, ""]


class Draws(NamedTuple):
    """Count, sums and sums of squares of the drawn cosines: [matched, mismatched]."""

    count: Float[Array, ""]
    sums: Float[Array, " 2"]
    squares: Float[Array, " 2"]


def largest_cosines(
    cosines: Float[Array, "I R *rest"], mask: Float[Array, "I R"]
) -> Float[Array, " I *rest"]:
    """Largest cosine of each word with a region of each image."""
    is_region = mask.reshape(*mask.shape, *[1] * (cosines.ndim - 2)) > 0
    return jnp.max(cosines, axis=1, where=is_region, initial=-1.0)


def boundary(draws: Draws) -> tuple[Float[Array, ""], Float[Array, ""], Array]:
    """Compute new thresholds, in [0, 1], from the draws, and whether the distributions cross."""
    mean = draws.sums / jnp.maximum(draws.count, 1)
    spread = jnp.maximum(draws.squares - draws.count * mean**2, 0.0)
    variance = spread / jnp.maximum(draws.count - 1, 1)
    (p, n), (vp, vn) = mean, variance
    deviation = safe_sqrt(variance)
    a = vp - vn
    b = 2 * (p * vn - n * vp)
    ratio = deviation[1] / (ALPHA * jnp.maximum(deviation[0], 1e-12)) + 1e-8
    c = n**2 * vp - p**2 * vn + 2 * vp * vn * jnp.log(ratio)
    discriminant = b**2 - 4 * a * c
    found = (-b + safe_sqrt(discriminant)) / (2 * a + 1e-10)
    safe = p - 3 * deviation[0]
    inside = [jnp.where((x >= 0) & (x <= 1), x, 0.0) for x in (found, safe)]
    return *inside, discriminant > 0


def move(old: Thresholds, draws: Draws) -> Thresholds:
    """Update the thresholds if more than `FEWEST_WORDS` words are drawn."""
    *new, crosses = boundary(draws)
    moves = (draws.count > FEWEST_WORDS) & crosses
    return Thresholds(
        *(
            jnp.where(moves, NEW_SHARE * x + (1 - NEW_SHARE) * y, y)
            for x, y in zip(new, old, strict=True)
        )
    )


def by_batch(
    sims: Float[Array, "I J"],
    images: ImageCode,
    texts: TextCode,
    old: Thresholds,
    axis_name: str | None,
) -> Thresholds:
    """Update the thresholds after a batch whose scores are `sims`, as in the paper.

    Args:
      sims: scores of all images with the captions of this device.
      images: the images of all devices.
      texts: the captions of this device.
      old: the thresholds that the batch was scored with.
      axis_name: mapped axis of the devices, or None.
    """
    own = _own_images(len(images.mask), len(texts.mask), axis_name)
    is_first = (jnp.argmax(sims, axis=0) == own).astype(jnp.float32)
    words = texts.mask * is_first[:, None]
    maxima = []
    for rows in (own, jnp.argmin(sims, axis=0)):
        cosines = jnp.einsum("jrd,jld->jrl", images.regions[rows], texts.words)
        maxima.append(largest_cosines(cosines, images.mask[rows]))
    draws = _draws(jnp.stack(maxima), words)
    return move(old, draws if axis_name is None else jax.lax.psum(draws, axis_name))


def by_caption(
    score: Callable,
    images: ImageCode,
    texts: TextCode,
    old: Thresholds,
    axis_name: str | None,
) -> tuple[Float[Array, " J"], Thresholds]:
    """Compute each caption's threshold, and the thresholds after the batch, as the code does.

    Each device goes through the captions of all devices.

    Args:
      score: `(words [L, D], mask [L], threshold) -> [I]`, the training scores of a caption.
      images: the images of all devices.
      texts: the captions of this device.
      old: the thresholds after the previous batch.
      axis_name: mapped axis of the devices, or None.
    """
    own = _own_images(len(images.mask), len(texts.mask), axis_name)
    everything = texts.words, texts.mask, own
    if axis_name is not None:
        everything = jax.lax.all_gather(everything, axis_name, tiled=True)
    order = jnp.argsort(-jnp.sum(everything[1], axis=1), stable=True)

    def visit(carry, caption):
        thresholds, draws = carry
        words, mask, own = caption
        scores = score(words, mask, thresholds.threshold)
        rows = jnp.stack([own, jnp.argmin(scores)])
        cosines = jnp.einsum("ird,ld->irl", images.regions[rows], words)
        is_first = jnp.argmax(scores) == own
        maxima = largest_cosines(cosines, images.mask[rows])[:, None]
        found = _draws(maxima, jnp.where(is_first, mask[None], 0.0))
        draws = jax.tree.map(jnp.add, draws, found)
        moved = move(thresholds, draws)
        moved = jax.tree.map(lambda x, y: jnp.where(is_first, x, y), moved, thresholds)
        is_early = draws.count < FEWEST_WORDS
        after = jax.tree.map(lambda x: jnp.where(is_early, 0.0, x), moved)
        return (after, draws), thresholds.threshold

    captions = jax.tree.map(lambda x: x[order], everything)
    no_draws = Draws(jnp.zeros(()), jnp.zeros(2), jnp.zeros(2))
    (after, _), used = jax.lax.scan(visit, (old, no_draws), captions)
    used = jnp.zeros_like(used).at[order].set(used)
    if axis_name is not None:
        size = len(texts.mask)
        used = jax.lax.dynamic_slice_in_dim(used, jax.lax.axis_index(axis_name) * size, size)
    return used, after


def _own_images(images: int, captions: int, axis_name: str | None) -> Int[Array, " J"]:
    """Row of the own image of each caption of this device, among the images of all devices.

    -1, which matches no row, if there are fewer images than captions, as these are not pairs.
    """
    device, devices = 0, 1
    if axis_name is not None:
        device, devices = jax.lax.axis_index(axis_name), jax.lax.axis_size(axis_name)
    each = images // devices
    if each < captions:
        return jnp.full(captions, -1)
    return device * each + jnp.arange(captions)


def _draws(maxima: Float[Array, "2 J L"], words: Float[Array, "J L"]) -> Draws:
    """Draws of the words whose mark in `words` is 1."""
    return Draws(
        jnp.sum(words),
        jnp.einsum("kjl,jl->k", maxima, words),
        jnp.einsum("kjl,jl->k", maxima**2, words),
    )
