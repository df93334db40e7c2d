"""One direction of a GRU over padded sequences."""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.layers import uniform_init


class GRU(nn.Module):
    """`[J, L, E] -> [J, L, H]`, zero past the end; started at zero, from the end if `reverse`.

    The input projection of all steps is outside the scan. Kernels and biases hold the gates in the
    order reset, update, new; both bias vectors of the reference are kept, because under Adam two
    biases that only ever appear as a sum move twice as far as one.
    """

    hidden: int
    reverse: bool = False

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "J L E"], mask: Float[Array, "J L"]
    ) -> Float[Array, "J L H"]:
        init = uniform_init(self.hidden**-0.5)
        gates = 3 * self.hidden
        input_kernel = self.param("input_kernel", init, (inputs.shape[-1], gates))
        input_bias = self.param("input_bias", init, (gates,))
        hidden_kernel = self.param("hidden_kernel", init, (self.hidden, gates))
        hidden_bias = self.param("hidden_bias", init, (gates,))
        inputs = jnp.swapaxes(inputs, 0, 1)
        kernels, biases = jnp.split(input_kernel, 3, axis=1), jnp.split(input_bias, 3)
        reset, update, new = (inputs @ k + b for k, b in zip(kernels, biases, strict=True))
        of_reset, of_update, of_new = jnp.split(hidden_bias, 3)
        answer = jnp.broadcast_to(of_new, new.shape)
        given = _Gates(reset + of_reset, update + of_update, new, answer)
        states = _states(hidden_kernel, given, mask.T, self.reverse)
        return jnp.swapaxes(states, 0, 1) * mask[..., None]


class _Gates(NamedTuple):
    """What the gates of all steps are, apart from what the kernel makes of the state before.

    An array each: where a step takes its gates out of one array of all, a CPU takes twice as long.
    """

    reset: Float[Array, "L J H"]
    update: Float[Array, "L J H"]
    new: Float[Array, "L J H"]
    answer: Float[Array, "L J H"]  # what the state adds to `new`, times the reset gate


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _states(
    kernel: Float[Array, "H 3H"], given: _Gates, mask: Float[Array, "L J"], reverse: bool
) -> Float[Array, "L J H"]:
    """The state after each step. The kernel's gradient is one product of all steps, where a scan
    would add up a matrix as large as the kernel at every step."""
    return _scan(kernel, given, mask, reverse)


def _forward(kernel, given, mask, reverse):
    states, pull = jax.vjp(lambda given: _scan(kernel, given, mask, reverse), given)
    return states, (states, pull)


def _backward(reverse, kept, slopes):
    states, pull = kept
    (of_given,) = pull(slopes)
    # What the kernel makes of a state is added to three gates of the next step; the first is zero.
    before, after = (slice(1, None), slice(-1)) if reverse else (slice(-1), slice(1, None))
    of_kernel = [
        jnp.einsum("ljh,ljg->hg", states[before], of_gate[after])
        for of_gate in (of_given.reset, of_given.update, of_given.answer)
    ]
    return jnp.concatenate(of_kernel, axis=1), of_given, None


_states.defvjp(_forward, _backward)


def _scan(kernel, given, mask, reverse) -> Float[Array, "L J H"]:
    def step(state, xs):
        gates, valid = xs
        of_reset, of_update, of_answer = jnp.split(state @ kernel, 3, axis=1)
        reset = nn.sigmoid(gates.reset + of_reset)
        update = nn.sigmoid(gates.update + of_update)
        new = nn.tanh(gates.new + reset * (gates.answer + of_answer))
        # A padded step leaves the state alone. Run backwards, padding comes first and the state is
        # still zero when the last word is reached.
        state = jnp.where(valid[:, None] > 0, (1.0 - update) * new + update * state, state)
        return state, state

    start = jnp.zeros((mask.shape[1], kernel.shape[0]), kernel.dtype)
    return jax.lax.scan(step, start, (given, mask), reverse=reverse)[1]
