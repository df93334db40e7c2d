r"""Half a Sinkhorn iteration of the partial problem: one side's marginals and the mass at once.

Given the columns' potentials, row :math:`i` sends :math:`e^{f_i} S_i` with
:math:`S_i = \sum_j e^{g_j - C_{ij}}`, and keeps :math:`e^{f_i + \delta}`, where :math:`\delta`, the
potential of the dummy column, is common to all rows. Both together are the row's weight, so a row
moves the share :math:`\sigma(\log S_i - \delta)` of it, and :math:`\delta` follows from the mass:
one equation in one unknown, whose left side is monotone. The columns and the dummy row likewise.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from l2rm_jax.ot.problem import Side

# Newton steps: from the last half iteration's solution, the iteration doing the rest; from none,
# at most, and the step after which two more are exact, the second in its derivative too.
_WARM_STEPS = 2
_COLD_STEPS, _LAST_STEP = 100, 1e-3
# A last step beyond this many units would leave the region in which the slope means something.
_LONGEST_STEP = 3.0


def shares(
    gap: Float[Array, " n"], side: Side, mass: Float[Array, ""], start: Float[Array, ""] | None
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    r"""Moves `mass` of a side.

    Args:
        gap: :math:`\log S_i`, the ease of moving the item, less the ease of staying; any finite
            value for an item without weight.
        side: the weights and how much of them stays.
        mass: to move.
        start: a good guess of :math:`\delta`, which a step or two of Newton's improve; None to
            find it from nothing.

    Returns:
        What each item moves, and :math:`\delta`. Both may be differentiated: the last step's
        derivative is that of the root.
    """
    target = jnp.log(jnp.maximum(mass, jnp.finfo(gap.dtype).tiny)) - jnp.log(side.left)

    def newton(gap, weights, target, dummy):
        # On the scale of log odds the mass is a line in delta where all gaps are the same.
        go = weights * jax.nn.sigmoid(gap - dummy)
        stay = weights * jax.nn.sigmoid(dummy - gap)
        moved, left = (jnp.maximum(part.sum(), 1e-30) for part in (go, stay))
        slope = jnp.sum(go * jax.nn.sigmoid(dummy - gap)) * (1 / moved + 1 / left)
        slope = lax.stop_gradient(jnp.maximum(slope, 1e-6))
        return (jnp.log(moved) - jnp.log(left) - target) / slope

    def last(*values):
        return jnp.clip(newton(*values), -_LONGEST_STEP, _LONGEST_STEP)

    fixed = lax.stop_gradient((gap, side.weights, target))
    dummy = _search(newton, *fixed) if start is None else lax.stop_gradient(start)
    for _ in range(_WARM_STEPS - 1):
        dummy = dummy + last(*fixed, dummy)
    dummy = dummy + last(gap, side.weights, target, dummy)
    return side.weights * jax.nn.sigmoid(gap - dummy), dummy


def _search(newton, gap, weights, target):
    """Newton's method between bounds; their middle where a step leaves them.

    With all gaps the same, delta is the gap less the target: with several, it is between the
    values that the least and the largest would give.
    """
    mean = jnp.sum(weights * gap) / jnp.maximum(weights.sum(), 1e-30)
    alive = jnp.where(weights > 0, gap, mean)

    def unfinished(state):
        _, change, _, _, count = state
        return (jnp.abs(change) > _LAST_STEP) & (count < _COLD_STEPS)

    def iterate(state):
        dummy, _, low, high, count = state
        step = newton(gap, weights, target, dummy)
        low, high = jnp.where(step > 0, dummy, low), jnp.where(step > 0, high, dummy)
        inside = (low < dummy + step) & (dummy + step < high)
        new = jnp.where(inside, dummy + step, (low + high) / 2)
        return new, new - dummy, low, high, count + 1

    start = mean - target, jnp.full_like(mean, jnp.inf), alive.min() - target, alive.max() - target
    return lax.while_loop(unfinished, iterate, (*start, 0))[0]
