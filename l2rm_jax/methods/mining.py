"""Nearest neighbours across modalities: RCSL's pseudo-pairs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

CHUNK = 512  # queries at once: memory grows with their product with the keys, not with all queries


@partial(jax.jit, static_argnames="chunk")
def nearest(
    queries: Float[np.ndarray, "n D"], keys: Float[np.ndarray, "m D"], *, chunk: int = CHUNK
) -> Int[jax.Array, " n"]:
    """The row of the key with the largest dot product with each query, the first of equals."""
    return jax.lax.map(lambda query: jnp.argmax(keys @ query), queries, batch_size=chunk)


def pseudo_pairs(
    images: Float[np.ndarray, "N D"],
    captions: Float[np.ndarray, "N D"],
    image_of: Int[np.ndarray, " N"],
    unpaired: Int[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """What is nearest to the image, and to the caption, of each unpaired pair, among the unpaired.

    Args:
      images: embedding of the image of each pair.
      captions: embedding of its caption.
      image_of: row of its image: pairs of the same row have the same image.
      unpaired: rows of the pairs to search and to search among.

    Returns:
      By pair, the pair whose image is nearest to its caption, and the pair whose caption is nearest
      to its image (RCSL, before Eq. 7); the pair itself where it is paired.
    """
    image_for, caption_for = np.arange(len(images)), np.arange(len(images))
    if len(unpaired):
        _, first, of = np.unique(image_of[unpaired], return_index=True, return_inverse=True)
        once = unpaired[first]  # a pair for each of the images
        image_for[unpaired] = once[nearest(captions[unpaired], images[once])]
        caption_for[unpaired] = unpaired[nearest(images[once], captions[unpaired])][of]
    return image_for, caption_for


def couple(
    paired: Bool[np.ndarray, " N"], rng: np.random.Generator, share: float = 1.0
) -> Int[np.ndarray, "n 2"]:
    """Each paired image with its caption, the others with captions of other pairs, at random.

    Only a share of the others is taken, at random. One alone is left out: there is no other pair.
    """
    trusted, others = np.flatnonzero(paired), rng.permutation(np.flatnonzero(~paired))
    others = others[: round(share * len(others))]
    others = others[: len(others) if len(others) > 1 else 0]
    captions = np.concatenate([trusted, np.roll(others, 1)])
    return np.stack([np.concatenate([trusted, others]), captions], axis=1)
