"""Means of exponentials over reference images and captions, compiled, one block at a time."""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, static_argnames="with_apart")
def compare_block(
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
        elsewhere = _log_mean_exp(scaled, is_other, axis=0)
        means = mean_exp, elsewhere, mean_exp, elsewhere
    chosen = jnp.take_along_axis(scaled, wrong.T, axis=0).T
    return *means, means[0] - scaled.mean(axis=0), chosen


def _means_apart(scaled: jax.Array, is_other: jax.Array) -> tuple[jax.Array, ...]:
    """Compute the four means of `compare_block` from one pass over all others but the best."""
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
def mean_exps(
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
    mean_exp = _log_mean_exp(scaled, is_kept, axis=1)
    if not with_apart:
        return mean_exp, mean_exp
    best = jnp.argmax(jnp.where(same, -jnp.inf, scaled), axis=1)
    is_apart = is_kept & (owners[None] != owners[best][:, None])
    apart = _log_mean_exp(scaled, is_apart, axis=1)
    return mean_exp, jnp.where(is_apart.any(axis=1), apart, mean_exp)  # else nothing is left


def _log_mean_exp(values: jax.Array, kept: jax.Array, axis: int) -> jax.Array:
    """Compute the log-mean-exp of the kept places along an axis."""
    return jax.nn.logsumexp(values, axis=axis, where=kept) - jnp.log(kept.sum(axis=axis))
