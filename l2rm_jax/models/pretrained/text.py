"""Text transformers: BERT, and the text encoders of CLIP and SigLIP.

Devlin et al., "BERT", NAACL 2019; Radford et al., "Learning Transferable Visual Models From Natural
Language Supervision" (CLIP), ICML 2021; Zhai et al., "Sigmoid Loss for Language Image
Pre-Training" (SigLIP), ICCV 2023. Numbers equal those of Hugging Face's transformers.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.layers import Dropout, Linear, l2_normalise, masked_mean
from l2rm_jax.models.pretrained.blocks import layer_norm, run_blocks
from l2rm_jax.pretrained.specs import TextBase

States = tuple[Float[Array, "J S D"], Int[Array, " J"]]  # states, and their number per caption
_table_init = nn.initializers.normal(0.02)


class TextTransformer(nn.Module):
    """Token ids `[J, L]` and lengths `[J]` to states `[J, S, D]` and their numbers `[J]`.

    With `vector`, a caption has one state: its vector, scaled to unit length. Otherwise, a BERT
    gives the state of every token. CLIP and SigLIP give the caption's vector and then the words,
    without the tokens for start, end and padding; the words go through the same last layer as the
    vector, and all have unit length. States past the end of a caption are zero.

    Attributes:
      base: the architecture.
      vector: return only the vector.
      remat: compute each layer again in the backward pass, to save memory.
      axis_name: mapped axis of the devices, or None.
    """

    base: TextBase
    vector: bool = False
    remat: bool = False
    axis_name: str | None = None

    @nn.compact
    def __call__(self, tokens: Int[Array, "J L"], lengths: Int[Array, " J"], train: bool) -> States:
        base = self.base
        tokens = tokens[:, : base.positions]  # anything after them is padding
        states = self._last_states(tokens, lengths, train)
        if base.kind == "bert":
            return self._bert_states(states, lengths)
        if base.projection:
            has_bias = base.kind == "siglip"
            states = Linear(base.projection, has_bias, name="projection")(states)
        last = lengths - 1 if base.pooling == "end" else jnp.full_like(lengths, -1)
        vectors = states[jnp.arange(len(states)), last][:, None]
        if self.vector:
            return l2_normalise(vectors), jnp.ones_like(lengths)
        if base.kind == "clip":  # between the tokens for start and end
            words, counts = states[:, 1:], lengths - 2
        else:
            words = states[:, :-1]
            counts = jnp.sum(tokens[:, :-1] != base.padding, axis=1, dtype=lengths.dtype)
        states = l2_normalise(jnp.concatenate([vectors, words], axis=1))
        return _without_padding(states, counts + 1), counts + 1

    def _last_states(
        self, tokens: Int[Array, "J L"], lengths: Int[Array, " J"], train: bool
    ) -> Float[Array, "J L D"]:
        """States after the last layer, normalised; rows past the end hold anything."""
        base, stack, length = self.base, self.base.stack, tokens.shape[1]

        def table(name: str, rows: int) -> Array:
            return self.param(name, _table_init, (rows, stack.width))

        states = table("words", base.pieces)[tokens]
        states = states + table("positions", base.positions)[None, :length]
        if base.segments:
            states = states + table("segments", base.segments)[None, :1]
        is_token = jnp.arange(length)[None] < lengths[:, None]
        mask = is_token[:, None, None]
        if base.pads_to_limit:
            mask = jnp.ones_like(mask)
        if base.kind == "clip":  # words see those before them
            mask = mask & jnp.tri(length, dtype=bool)[None, None]
        if not stack.norm_first:
            states = layer_norm(stack.epsilon, "norm")(states)
        states = Dropout(stack.dropout, self.axis_name)(states, train)
        settings = {"axis_name": self.axis_name, "train": train, "remat": self.remat}
        states = run_blocks(stack, states, mask, **settings)
        return layer_norm(stack.epsilon, "norm")(states) if stack.norm_first else states

    def _bert_states(self, states: Float[Array, "J L D"], lengths: Int[Array, " J"]) -> States:
        if not self.vector:
            return _without_padding(states, lengths), lengths
        vectors = states[:, 0]
        if self.base.pooling == "mean":
            mask = jnp.arange(states.shape[1])[None] < lengths[:, None]
            vectors = masked_mean(states, mask.astype(states.dtype))
        return l2_normalise(vectors)[:, None], jnp.ones_like(lengths)


def _without_padding(
    states: Float[Array, "J S D"], counts: Int[Array, " J"]
) -> Float[Array, "J S D"]:
    is_state = jnp.arange(states.shape[1])[None] < counts[:, None]
    return jnp.where(is_state[..., None], states, 0.0)
