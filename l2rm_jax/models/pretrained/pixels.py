"""Prepare pixels on the device: standardised inputs of a vision transformer, and random crops.

Pure functions. A crop takes one picture and its random key.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from l2rm_jax.pretrained.specs import Preparation


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
