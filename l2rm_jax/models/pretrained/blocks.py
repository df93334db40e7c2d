"""The layers of a transformer (Vaswani et al., "Attention Is All You Need", NeurIPS 2017).

All layers are one module under `nn.scan`, so their arrays have a leading axis `[layers, ...]` and
the program holds one layer. With `remat`, the backward pass keeps only the input of each layer and
computes the layer again. On a CPU this saves memory only under `nn.scan`: if the layers are
unrolled, the compiler recomputes all of them before it needs the first.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from l2rm_jax.models.layers import Dropout, Linear
from l2rm_jax.pretrained.specs import Stack

ACTIVATIONS: dict[str, Callable] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
}


def layer_norm(epsilon: float, name: str) -> nn.LayerNorm:
    """Layer normalisation whose variance is the mean of squared differences, as in PyTorch."""
    return nn.LayerNorm(epsilon=epsilon, use_fast_variance=False, name=name)


class AdaptedLinear(Linear):
    """Linear layer to which a product of two small matrices is added, `x lower raise`.

    Hu et al., "LoRA", ICLR 2022. `raise` is zero at first, so the layer is the pretrained one.

    Attributes:
      rank: columns of `lower`; 0 adds nothing.
    """

    rank: int = 0

    @nn.compact
    def __call__(self, x: Float[Array, "... i"]) -> Float[Array, "... o"]:
        outputs = super().__call__(x)
        if not self.rank:
            return outputs
        unit_variance = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        lower = self.param("lower", unit_variance, (x.shape[-1], self.rank))
        upper = self.param("raise", nn.initializers.zeros_init(), (self.rank, self.features))
        return outputs + (x @ lower) @ upper


class Attention(nn.Module):
    """Multi-head attention of queries `[n, Q, D]` to states `[n, K, D]`: `[n, Q, D]`.

    Attributes:
      heads: number of heads, a divisor of D.
      rank: rank of the adapters of its maps; 0 without any.
      dropout: rate of dropout of the weights.
      axis_name: mapped axis of the devices, or None.
    """

    heads: int
    rank: int = 0
    dropout: float = 0.0
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self,
        queries: Float[Array, "n Q D"],
        states: Float[Array, "n K D"],
        mask: Bool[Array, "#n 1 #Q #K"],
        train: bool,
    ) -> Float[Array, "n Q D"]:
        width = states.shape[-1]

        def project(x: Array, name: str) -> Array:
            split = (*x.shape[:2], self.heads, width // self.heads)
            return AdaptedLinear(width, rank=self.rank, name=name)(x).reshape(split)

        query, key = project(queries, "query"), project(states, "key")
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) * (width // self.heads) ** -0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
        weights = Dropout(self.dropout, self.axis_name)(weights, train)
        mixed = jnp.einsum("nhqk,nkhd->nqhd", weights, project(states, "value"))
        return AdaptedLinear(width, rank=self.rank, name="out")(mixed.reshape(queries.shape))


class Block(nn.Module):
    """One layer: attention, then two linear maps, each added to its input and normalised."""

    stack: Stack
    axis_name: str | None
    train: bool

    @nn.compact
    def __call__(
        self, states: Float[Array, "n L D"], mask: Bool[Array, "#n 1 #L #L"]
    ) -> tuple[Float[Array, "n L D"], None]:
        stack = self.stack
        attention = Attention(
            stack.heads,
            stack.adapter_rank,
            stack.attention_dropout,
            self.axis_name,
            name="attention",
        )

        def attend(x: Array) -> Array:
            return attention(x, x, mask, self.train)

        def transform(x: Array) -> Array:
            inner = ACTIVATIONS[stack.activation](Linear(stack.inner, name="inner")(x))
            return Linear(stack.width, name="outer")(inner)

        for change, name in ((attend, "attention_norm"), (transform, "map_norm")):
            norm = layer_norm(stack.epsilon, name)
            changed = change(norm(states) if stack.norm_first else states)
            states = states + Dropout(stack.dropout, self.axis_name)(changed, self.train)
            states = states if stack.norm_first else norm(states)
        return states, None


def run_blocks(
    stack: Stack,
    states: Float[Array, "n L D"],
    mask: Bool[Array, "#n 1 #L #L"],
    *,
    axis_name: str | None,
    train: bool,
    remat: bool,
) -> Float[Array, "n L D"]:
    """Apply the layers, as the submodule `blocks` of the calling module.

    Args:
      stack: the layers.
      states: input of the first layer.
      mask: True where a state (second-last axis) attends to a state (last axis).
      axis_name: mapped axis of the devices, or None.
      train: whether to use dropout.
      remat: compute each layer again in the backward pass, to save memory.
    """
    block = nn.remat(Block, prevent_cse=False) if remat else Block
    blocks = nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},  # else every layer drops the same units
        in_axes=nn.broadcast,
        length=stack.layers,
    )
    states, _ = blocks(stack, axis_name, train, name="blocks")(states, mask)
    return states
