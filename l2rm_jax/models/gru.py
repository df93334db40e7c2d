"""One direction of a GRU over padded sequences."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.layers import uniform_init


class GRU(nn.Module):
    """`[J, L, E] -> [J, L, H]`, zero past the end; started at zero, from the end if `reverse`.

    The input projection of all steps is one matrix product outside the scan. Gates are ordered
    reset, update, new; both bias vectors of the reference are kept, because under Adam two biases
    that only ever appear as a sum move twice as far as one.
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
        projected = jnp.swapaxes(inputs @ input_kernel + input_bias, 0, 1)
        biases = jnp.broadcast_to(hidden_bias, projected.shape)
        states = _states(hidden_kernel, projected, biases, mask.T, self.reverse)
        return jnp.swapaxes(states, 0, 1) * mask[..., None]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _states(
    kernel: Float[Array, "H 3H"],
    projected: Float[Array, "L J 3H"],
    biases: Float[Array, "L J 3H"],
    mask: Float[Array, "L J"],
    reverse: bool,
) -> Float[Array, "L J H"]:
    """The state after each step. The kernel's gradient is one product of all steps, where a scan
    would add up a matrix as large as the kernel at every step."""
    return _scan(kernel, projected, biases, mask, reverse)


def _forward(kernel, projected, biases, mask, reverse):
    states, pull = jax.vjp(lambda *each: _scan(kernel, *each, mask, reverse), projected, biases)
    return states, (states, pull)


def _backward(reverse, kept, slopes):
    states, pull = kept
    of_projected, of_biases = pull(slopes)
    # What the kernel makes of a state is added to the biases of the next step; the first is zero.
    before, after = (states[1:], of_biases[:-1]) if reverse else (states[:-1], of_biases[1:])
    of_kernel = jnp.einsum("ljh,ljg->hg", before, after)
    return of_kernel, of_projected, of_biases, None


_states.defvjp(_forward, _backward)


def _scan(kernel, projected, biases, mask, reverse) -> Float[Array, "L J H"]:
    def step(state, xs):
        of_input, bias, valid = xs
        x_reset, x_update, x_new = jnp.split(of_input, 3, axis=-1)
        h_reset, h_update, h_new = jnp.split(state @ kernel + bias, 3, axis=-1)
        reset = nn.sigmoid(x_reset + h_reset)
        update = nn.sigmoid(x_update + h_update)
        new = nn.tanh(x_new + reset * h_new)
        # A padded step leaves the state alone. Run backwards, padding comes first and the state is
        # still zero when the last word is reached.
        state = jnp.where(valid[:, None] > 0, (1.0 - update) * new + update * state, state)
        return state, state

    start = jnp.zeros((projected.shape[1], kernel.shape[0]), projected.dtype)
    return jax.lax.scan(step, start, (projected, biases, mask), reverse=reverse)[1]
