r"""Half a Sinkhorn iteration of the partial problem: one side's marginals and the mass at once.

Given the columns' potentials, row :math:`i` sends :math:`e^{f_i} S_i` with
:math:`S_i = \sum_j e^{g_j - C_{ij}}`, and keeps :math:`e^{f_i + \delta} r / s`, where
:math:`\delta`, the potential of the dummy column, is common to all rows. Both together are the
row's weight, so a row moves the share :math:`\sigma(\log S_i - \delta + \log (s / r))` of it, and
:math:`\delta` follows from the mass: one equation in one unknown, whose left side is monotone. The
columns and the dummy row likewise. The mass :math:`s` over what stays, :math:`r`, would be the odds
of every item, were all alike; without that factor, :math:`\delta` needs few digits before the
point, however little of a side moves.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from l2rm_jax.ot.problem import Side

# Newton steps from nothing, at most, and the one after which two more are exact, the second in its
# derivative too.
_COLD_STEPS, _LAST_STEP = 100, 1e-3
# A last step beyond this many units would leave the region in which the slope means something.
_LONGEST_STEP = 3.0
# What is too little, relatively, for a sum of differences to tell it from nothing.
_LEAST = 1e-6 - 1


def shares(
    gap: Float[Array, " n"],
    side: Side,
    mass: Float[Array, ""],
    start: Float[Array, ""] | None = None,
    steps: int = 2,
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, ""]]:
    r"""Moves `mass` of a side.

    Args:
        gap: :math:`\log S_i`, the ease of moving the item, less the ease of staying; any finite
            value for an item without weight.
        side: the weights and how much of them stays.
        mass: to move.
        start: a good guess of :math:`\delta`, such as the last iteration's; None to find it from
            nothing.
        steps: of Newton's, to improve it; the next iteration does the rest.

    Returns:
        What each item moves, what it keeps, and :math:`\delta`. All may be differentiated: the last
        step's derivative is that of the root.
    """
    mass = jnp.maximum(mass, jnp.finfo(gap.dtype).tiny)
    fixed = lax.stop_gradient((gap, side, mass))
    dummy = _search(*fixed) if start is None else lax.stop_gradient(start)
    for _ in range(steps - 1):
        dummy = dummy + _short_step(*fixed, dummy)
    dummy = dummy + _short_step(gap, side, mass, dummy)
    go, stay = _split(gap, side, mass, dummy)
    return side.weights * go, side.weights * stay, dummy


def _split(gap, side, mass, dummy):
    """The shares that items move and keep, each to its last digit."""
    odds = gap - dummy
    small = jnp.exp(jnp.where(odds > 0, -odds, odds))
    go = mass * jnp.where(odds > 0, 1.0, small)
    stay = side.left * jnp.where(odds > 0, small, 1.0)
    return go / (go + stay), stay / (go + stay)


def _step(gap, side, mass, dummy):
    """Newton's: the log odds of the mass are a line in delta where all gaps are the same."""
    go, stay = _split(gap, side, mass, dummy)
    # Sums of differences, which vanish at the root: those of the terms would round by more.
    whole = mass + side.left
    more = jnp.sum(side.weights * (go - mass / whole)) / mass
    fewer = jnp.sum(side.weights * (stay - side.left / whole)) / side.left
    more, fewer = jnp.maximum(more, _LEAST), jnp.maximum(fewer, _LEAST)
    rate = 1 / (mass * (1 + more)) + 1 / (side.left * (1 + fewer))
    slope = lax.stop_gradient(jnp.maximum(rate * jnp.sum(side.weights * go * stay), 1e-6))
    return (jnp.log1p(more) - jnp.log1p(fewer)) / slope


def _short_step(*values):
    return jnp.clip(_step(*values), -_LONGEST_STEP, _LONGEST_STEP)


def _search(gap, side, mass):
    """Newton's method between bounds; their middle where a step leaves them.

    Were all gaps the same, delta would be the gap: it is between the least and the largest.
    """
    mean = jnp.sum(side.weights * gap) / jnp.maximum(side.weights.sum(), 1e-30)
    alive = jnp.where(side.weights > 0, gap, mean)

    def unfinished(state):
        _, change, _, _, count = state
        return (jnp.abs(change) > _LAST_STEP) & (count < _COLD_STEPS)

    def iterate(state):
        dummy, _, low, high, count = state
        step = _step(gap, side, mass, dummy)
        low, high = jnp.where(step > 0, dummy, low), jnp.where(step > 0, high, dummy)
        inside = (low <= dummy + step) & (dummy + step <= high)  # the same where it is the root
        new = jnp.where(inside, dummy + step, (low + high) / 2)
        return new, new - dummy, low, high, count + 1

    start = mean, jnp.full_like(mean, jnp.inf), alive.min(), alive.max(), 0
    return lax.while_loop(unfinished, iterate, start)[0]
