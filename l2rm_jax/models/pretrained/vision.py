"""Vision transformers: the image encoders of CLIP and SigLIP, and the pixels that they take.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021; CLIP and SigLIP as in `text.py`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from l2rm_jax.models.layers import Linear, l2_normalise, sample_keys
from l2rm_jax.models.pretrained.blocks import ACTIVATIONS, Attention, layer_norm, run_blocks
from l2rm_jax.pretrained.preparation import Preparation
from l2rm_jax.pretrained.specs import ImageBase

_table_init = nn.initializers.normal(0.02)


def to_numbers(
    pixels: UInt8[Array, "I S S 3"] | Float[Array, "I S S 3"], preparation: Preparation
) -> Float[Array, "I S S 3"]:
    """Scale values of 0 to 255, and standardise each channel as the model was trained."""
    mean, std = (jnp.asarray(x, jnp.float32) for x in (preparation.mean, preparation.std))
    return (pixels.astype(jnp.float32) / 255.0 - mean[None, None, None]) / std[None, None, None]


def random_crop(
    key: Array, picture: UInt8[Array, "S S 3"], smallest: float
) -> Float[Array, "S S 3"]:
    """Cut a random square out of a picture, resize it to full size, and mirror it half the time.

    VSE-infinity (Chen et al., CVPR 2021) trains on such crops, of 0.6 to 1 of both sides.

    Args:
      key: random key of this picture.
      picture: values of 0 to 255.
      smallest: smallest side of the square, relative to the picture, in (0, 1].

    Returns:
      Values of 0 to 255, interpolated.
    """
    side_key, place_key, mirror_key = jax.random.split(key, 3)
    size = picture.shape[0]
    side = jax.random.uniform(side_key, (), minval=smallest, maxval=1.0)
    corner = jax.random.uniform(place_key, (2,)) * (1.0 - side) * size
    scale = jnp.full(2, 1.0 / side)
    values = picture.astype(jnp.float32)
    crop = jax.image.scale_and_translate(
        values, picture.shape, (0, 1), scale, -corner * scale, method="linear"
    )
    return jnp.where(jax.random.bernoulli(mirror_key), crop[:, ::-1], crop)


class VisionTransformer(nn.Module):
    """Pixels `[I, S, S, 3]` to states `[I, R, D]`: the picture's vector, then its patches.

    Pixels are numbers, as the base's `preparation` makes them. Patches are in reading order and, in
    CLIP, go through the same last norm and projection as the vector. All states have unit length.
    With `vector`, a picture has one state: its vector. With `left_out`, this share of the patches
    of a picture is dropped at random, after positions are added and before the first layer.

    Attributes:
      base: the architecture.
      vector: return only the vector.
      remat: compute each layer again in the backward pass, to save memory.
      axis_name: mapped axis of the devices, or None.
    """

    base: ImageBase
    vector: bool = False
    remat: bool = False
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self, pixels: Float[Array, "I S S 3"], train: bool, left_out: float = 0.0
    ) -> Float[Array, "I R D"]:
        base, stack = self.base, self.base.stack
        states = Linear(stack.width, name="patches", use_bias=base.kind == "siglip")(
            _flat_patches(pixels, base.patch_size)
        )
        if base.kind == "clip":
            first = self.param("first", _table_init, (stack.width,))
            first = jnp.broadcast_to(first, (len(states), 1, stack.width))
            states = jnp.concatenate([first, states], axis=1)
        positions = self.param("positions", _table_init, (states.shape[1], stack.width))
        states = states + positions[None]
        if left_out:
            states = self._without_patches(states, left_out)
        if base.kind == "clip":
            states = layer_norm(stack.epsilon, "embedding_norm")(states)
        mask = jnp.ones((1, 1, 1, 1), bool)
        settings = {"axis_name": self.axis_name, "train": train, "remat": self.remat}
        states = run_blocks(stack, states, mask, **settings)
        states = layer_norm(stack.epsilon, "norm")(states)
        if base.kind == "clip":
            states = states[:, :1] if self.vector else states
            return l2_normalise(Linear(base.projection, use_bias=False, name="projection")(states))
        vectors = _AttentionPooling(base, name="pooling")(states)[:, None]
        return l2_normalise(vectors if self.vector else jnp.concatenate([vectors, states], axis=1))

    def _without_patches(
        self, states: Float[Array, "I N D"], share: float
    ) -> Float[Array, "I K D"]:
        """Keep random patches of each picture, at least one, and all states before the patches."""
        first = states.shape[1] - self.base.patches
        kept = max(1, int(self.base.patches * (1 - share)))
        keys = sample_keys(self.make_rng("dropout"), len(states), self.axis_name)

        def keep(key: Array, patches: Float[Array, "P D"]) -> Float[Array, "K D"]:
            noise = jax.random.uniform(key, patches.shape[:1])
            return patches[jnp.sort(jnp.argsort(noise)[:kept])]

        patches = jax.vmap(keep)(keys, states[:, first:])
        return jnp.concatenate([states[:, :first], patches], axis=1)


class _AttentionPooling(nn.Module):
    """SigLIP's vector of a picture: attention to the patches by a learned query."""

    base: ImageBase

    @nn.compact
    def __call__(self, states: Float[Array, "I R D"]) -> Float[Array, "I D"]:
        stack = self.base.stack
        probe = self.param("probe", _table_init, (stack.width,))
        query = jnp.broadcast_to(probe, (len(states), 1, stack.width))
        mask = jnp.ones((1, 1, 1, 1), bool)
        pooled = Attention(stack.heads, name="attention")(query, states, mask, train=False)
        x = layer_norm(stack.epsilon, "norm")(pooled)
        x = ACTIVATIONS[stack.activation](Linear(stack.inner, name="inner")(x))
        return (pooled + Linear(stack.width, name="outer")(x))[:, 0]


def _flat_patches(pixels: Float[Array, "I S S 3"], side: int) -> Float[Array, "I N P"]:
    """Patches in reading order, each flattened by row, column and channel."""
    images, rows = len(pixels), pixels.shape[1] // side
    grid = pixels.reshape(images, rows, side, rows, side, 3).swapaxes(2, 3)
    return grid.reshape(images, rows * rows, side * side * 3)
