r"""Half a Sinkhorn iteration of the partial problem: one side's weights and the mass at once.

Given the columns' potentials, row :math:`i` moves :math:`e^{f_i} S_i` with
:math:`S_i = \sum_j e^{g_j - C_{ij}}`, and keeps :math:`e^{f_i + \delta} r / s`. Here :math:`s` is
the mass to move, :math:`r` the total weight that rows keep, and :math:`\delta`, the potential of
the dummy column, is the same for all rows. Both together are the row's weight, so the row moves the
share :math:`\sigma(\log S_i - \delta + \log (s / r))` of it. The shares must add up to the mass:
one equation for the one unknown :math:`\delta`, whose left side is monotone. Columns and the
potential of the dummy row follow in the same way.

The factor :math:`s / r` is the odds of moving if all items were equal. With the factor split off,
:math:`\delta` stays a number of moderate size even if very little of a side moves.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from l2rm_jax.ot.problem import Side

# Without a starting value, the search ends after this many Newton steps, or when a step is smaller
# than this. Two more steps are then exact, the second in its derivative too.
_SEARCH_STEPS, _SMALL_STEP = 100, 1e-3
# Steps after the search are clipped to this: beyond it the slope says nothing about the function.
_MAX_STEP = 3.0
# Lower bound of a relative excess, which cannot be below -1 and must not round to it.
_LOWEST_EXCESS = 1e-6 - 1


def split_weights(
    gap: Float[Array, " n"],
    side: Side,
    mass: Float[Array, ""],
    start: Float[Array, ""] | None = None,
    steps: int = 2,
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, ""]]:
    r"""Split each item's weight into a moved and a kept part, so that `mass` moves in total.

    Args:
        gap: :math:`\log S_i` minus the log of the same term for staying, per item; any finite value
            for an item without weight.
        side: weights, and the total weight that stays.
        mass: mass to move.
        start: guess of :math:`\delta`, such as the last iteration's; None to search without one.
        steps: Newton steps that improve the guess. One or two suffice, because the next iteration
            continues from the result.

    Returns:
        The moved part of each weight, the kept part, and :math:`\delta`. All are differentiable:
        the derivative of the last step equals the derivative of the root.
    """
    mass = jnp.maximum(mass, jnp.finfo(gap.dtype).tiny)
    constants = lax.stop_gradient((gap, side, mass))
    delta = _search(*constants) if start is None else lax.stop_gradient(start)
    for _ in range(steps - 1):
        delta = delta + _clipped_newton_step(*constants, delta)
    delta = delta + _clipped_newton_step(gap, side, mass, delta)
    moved, kept = _shares(gap, side, mass, delta)
    return side.weights * moved, side.weights * kept, delta


def _shares(gap, side, mass, delta):
    """Moved and kept share of each item, both to full relative precision."""
    odds = gap - delta
    small = jnp.exp(jnp.where(odds > 0, -odds, odds))
    moved = mass * jnp.where(odds > 0, 1.0, small)
    kept = side.kept * jnp.where(odds > 0, small, 1.0)
    return moved / (moved + kept), kept / (moved + kept)


def _newton_step(gap, side, mass, delta):
    """Newton step on the log odds of the moved mass, which are linear in delta for equal gaps."""
    moved, kept = _shares(gap, side, mass, delta)
    # Sums of differences, which vanish at the root. Differences of sums would round by more.
    whole = mass + side.kept
    excess_moved = jnp.sum(side.weights * (moved - mass / whole)) / mass
    excess_kept = jnp.sum(side.weights * (kept - side.kept / whole)) / side.kept
    excess_moved = jnp.maximum(excess_moved, _LOWEST_EXCESS)
    excess_kept = jnp.maximum(excess_kept, _LOWEST_EXCESS)
    rate = 1 / (mass * (1 + excess_moved)) + 1 / (side.kept * (1 + excess_kept))
    slope = lax.stop_gradient(jnp.maximum(rate * jnp.sum(side.weights * moved * kept), 1e-6))
    return (jnp.log1p(excess_moved) - jnp.log1p(excess_kept)) / slope


def _clipped_newton_step(*values):
    return jnp.clip(_newton_step(*values), -_MAX_STEP, _MAX_STEP)


def _search(gap, side, mass):
    """Newton's method between bounds, with bisection where a step leaves them.

    The bounds are the smallest and the largest gap: if all gaps were equal, delta would be the gap.
    """
    mean = jnp.sum(side.weights * gap) / jnp.maximum(side.weights.sum(), 1e-30)
    movable = jnp.where(side.weights > 0, gap, mean)

    def is_unfinished(state):
        _, change, _, _, count = state
        return (jnp.abs(change) > _SMALL_STEP) & (count < _SEARCH_STEPS)

    def iterate(state):
        delta, _, low, high, count = state
        step = _newton_step(gap, side, mass, delta)
        low, high = jnp.where(step > 0, delta, low), jnp.where(step > 0, high, delta)
        # The bounds count as inside, because delta equals one of them at the root.
        is_inside = (low <= delta + step) & (delta + step <= high)
        new = jnp.where(is_inside, delta + step, (low + high) / 2)
        return new, new - delta, low, high, count + 1

    start = mean, jnp.full_like(mean, jnp.inf), movable.min(), movable.max(), 0
    return lax.while_loop(is_unfinished, iterate, start)[0]
