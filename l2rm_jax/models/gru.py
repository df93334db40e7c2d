"""Bidirectional GRU over padded sequences."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.layers import add_bias, uniform_init


def bidirectional_gru(
    inputs: Float[Array, "J L E"], mask: Float[Array, "J L"], hidden: int
) -> tuple[Float[Array, "J L H"], Float[Array, "J L H"]]:
    """Hidden states of a forward and of a backward GRU; zero past the end of a sequence.

    Both GRUs start from zero states. Call this function inside a Flax module: it adds the
    submodules `forward` and `backward` to that module. One scan runs both directions, since a step
    of both takes as many operations as a step of one, and the operations are small.

    Args:
      inputs: padded sequences.
      mask: 1 for an entry of a sequence, 0 for the padding after it.
      hidden: size H of a state.
    """
    inputs, mask = jnp.swapaxes(inputs, 0, 1), mask.T
    directions = (
        Direction(hidden, name="forward")(inputs),
        Direction(hidden, name="backward")(inputs[::-1]),
    )
    kernels, gates = zip(*directions, strict=True)
    gates = jax.tree.map(lambda *arrays: jnp.stack(arrays, axis=1), *gates)
    states = _hidden_states(jnp.stack(kernels), gates, jnp.stack([mask, mask[::-1]], axis=1))
    states = states[:, 0] * mask[..., None], states[::-1, 1] * mask[..., None]
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), states)


class _Gates(NamedTuple):
    """Gates of all steps before activation, without the contribution of the previous state.

    Each gate has its own array: on a CPU, slicing the gates of a step out of one array takes twice
    as long.
    """

    reset: Float[Array, "... H"]
    update: Float[Array, "... H"]
    new: Float[Array, "... H"]
    new_gated: Float[Array, "... H"]  # the part of `new` that the reset gate multiplies


class Direction(nn.Module):
    """Parameters of one direction: returns the kernel of its states, and its gates for `inputs`.

    Kernels and biases hold the gates in the order reset, update, new. Both bias vectors of the
    reference are kept although two of the gates depend only on their sum: under Adam, the sum of
    two biases moves twice as far as a single bias.
    """

    hidden: int

    @nn.compact
    def __call__(self, inputs: Float[Array, "L J E"]) -> tuple[Float[Array, "H 3*H"], _Gates]:
        init = uniform_init(self.hidden**-0.5)
        gates = 3 * self.hidden
        input_kernel = self.param("input_kernel", init, (inputs.shape[-1], gates))
        input_bias = self.param("input_bias", init, (gates,))
        hidden_kernel = self.param("hidden_kernel", init, (self.hidden, gates))
        hidden_bias = self.param("hidden_bias", init, (gates,))
        kernels, biases = jnp.split(input_kernel, 3, axis=1), jnp.split(input_bias, 3)
        pairs = zip(kernels, biases, strict=True)
        reset, update, new = (add_bias(inputs @ kernel, bias) for kernel, bias in pairs)
        reset_bias, update_bias, new_bias = jnp.split(hidden_bias, 3)
        new_gated = jnp.broadcast_to(new_bias, new.shape)
        reset, update = add_bias(reset, reset_bias), add_bias(update, update_bias)
        return hidden_kernel, _Gates(reset, update, new, new_gated)


@jax.custom_vjp
def _hidden_states(
    kernels: Float[Array, "2 H 3*H"], gates: _Gates, mask: Float[Array, "L 2 J"]
) -> Float[Array, "L 2 J H"]:
    """States after each step.

    The gradient of the kernels is one product over all steps. The gradient of a scan would add a
    matrix of the kernels' size at every step.
    """
    return _scan_states(kernels, gates, mask)


def _forward(kernels, gates, mask):
    states, pull = jax.vjp(lambda gates: _scan_states(kernels, gates, mask), gates)
    return states, (states, pull)


def _backward(residuals, cotangents):
    states, pull = residuals
    (gate_grads,) = pull(cotangents)
    # The kernel maps each state to the gates of the next step. The state before the first step is
    # zero and contributes nothing.
    kernel_grads = [
        jnp.einsum("ldjh,ldjg->dhg", states[:-1], grad[1:])
        for grad in (gate_grads.reset, gate_grads.update, gate_grads.new_gated)
    ]
    return jnp.concatenate(kernel_grads, axis=2), gate_grads, None


_hidden_states.defvjp(_forward, _backward)


def _scan_states(kernels, gates, mask) -> Float[Array, "L 2 J H"]:
    def step(states, xs):
        inputs, valid = xs
        recurrent = jnp.einsum("djh,dhg->djg", states, kernels)
        reset, update, new_gated = jnp.split(recurrent, 3, axis=2)
        reset = nn.sigmoid(inputs.reset + reset)
        update = nn.sigmoid(inputs.update + update)
        new = nn.tanh(inputs.new + reset * (inputs.new_gated + new_gated))
        # A padded step does not change the state. In the backward direction the padding comes
        # first, so the state is still zero at the last word.
        states = jnp.where(valid[..., None] > 0, (1.0 - update) * new + update * states, states)
        return states, states

    start = jnp.zeros((*mask.shape[1:], kernels.shape[1]), kernels.dtype)
    return jax.lax.scan(step, start, (gates, mask))[1]
