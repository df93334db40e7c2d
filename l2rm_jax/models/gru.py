"""Both directions of a GRU over padded sequences."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.layers import uniform_init


def bidirectional_gru(
    inputs: Float[Array, "J L E"], mask: Float[Array, "J L"], hidden: int
) -> tuple[Float[Array, "J L H"], Float[Array, "J L H"]]:
    """States of a GRU that reads forward and of one that reads backward, started at zero; zero past
    the end.

    For modules to call, as `forward` and `backward` become parts of theirs. Both take each step
    together: twice the work of one in as many operations, all of them small.
    """
    inputs, mask = jnp.swapaxes(inputs, 0, 1), mask.T
    both = (
        Direction(hidden, name="forward")(inputs),
        Direction(hidden, name="backward")(inputs[::-1]),
    )
    kernels, given = zip(*both, strict=True)
    given = jax.tree.map(lambda *gates: jnp.stack(gates, axis=1), *given)
    states = _states(jnp.stack(kernels), given, jnp.stack([mask, mask[::-1]], axis=1))
    states = states[:, 0] * mask[..., None], states[::-1, 1] * mask[..., None]
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), states)


class _Gates(NamedTuple):
    """What the gates of all steps are, apart from what the kernels make of the states before.

    An array each: where a step takes its gates out of one array of all, a CPU takes twice as long.
    """

    reset: Float[Array, "... H"]
    update: Float[Array, "... H"]
    new: Float[Array, "... H"]
    answer: Float[Array, "... H"]  # what the state adds to `new`, times the reset gate


class Direction(nn.Module):
    """The parameters of one direction: the kernel of its states, and its gates for `inputs`.

    Kernels and biases hold the gates in the order reset, update, new; both bias vectors of the
    reference are kept, because under Adam two biases that only ever appear as a sum move twice as
    far as one.
    """

    hidden: int

    @nn.compact
    def __call__(self, inputs: Float[Array, "L J E"]) -> tuple[Float[Array, "H 3H"], _Gates]:
        init = uniform_init(self.hidden**-0.5)
        gates = 3 * self.hidden
        input_kernel = self.param("input_kernel", init, (inputs.shape[-1], gates))
        input_bias = self.param("input_bias", init, (gates,))
        hidden_kernel = self.param("hidden_kernel", init, (self.hidden, gates))
        hidden_bias = self.param("hidden_bias", init, (gates,))
        kernels, biases = jnp.split(input_kernel, 3, axis=1), jnp.split(input_bias, 3)
        reset, update, new = (inputs @ k + b for k, b in zip(kernels, biases, strict=True))
        of_reset, of_update, of_new = jnp.split(hidden_bias, 3)
        answer = jnp.broadcast_to(of_new, new.shape)
        return hidden_kernel, _Gates(reset + of_reset, update + of_update, new, answer)


@jax.custom_vjp
def _states(
    kernels: Float[Array, "2 H 3H"], given: _Gates, mask: Float[Array, "L 2 J"]
) -> Float[Array, "L 2 J H"]:
    """The states after each step. The kernels' gradient is one product of all steps, where a scan
    would add up matrices as large as the kernels at every step."""
    return _scan(kernels, given, mask)


def _forward(kernels, given, mask):
    states, pull = jax.vjp(lambda given: _scan(kernels, given, mask), given)
    return states, (states, pull)


def _backward(kept, slopes):
    states, pull = kept
    (of_given,) = pull(slopes)
    # What a kernel makes of a state is added to three gates of the next step; the first is zero.
    of_kernels = [
        jnp.einsum("ldjh,ldjg->dhg", states[:-1], of_gate[1:])
        for of_gate in (of_given.reset, of_given.update, of_given.answer)
    ]
    return jnp.concatenate(of_kernels, axis=2), of_given, None


_states.defvjp(_forward, _backward)


def _scan(kernels, given, mask) -> Float[Array, "L 2 J H"]:
    def step(states, xs):
        gates, valid = xs
        of_states = jnp.einsum("djh,dhg->djg", states, kernels)
        of_reset, of_update, of_answer = jnp.split(of_states, 3, axis=2)
        reset = nn.sigmoid(gates.reset + of_reset)
        update = nn.sigmoid(gates.update + of_update)
        new = nn.tanh(gates.new + reset * (gates.answer + of_answer))
        # A padded step leaves the state alone. Backward, padding comes first, and the state is
        # still zero when the last word is reached.
        states = jnp.where(valid[..., None] > 0, (1.0 - update) * new + update * states, states)
        return states, states

    start = jnp.zeros((*mask.shape[1:], kernels.shape[1]), kernels.dtype)
    return jax.lax.scan(step, start, (given, mask))[1]
