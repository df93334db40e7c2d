"""Stacked cross attention and the alignment vectors that SGR and SAF start from."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.encoders import ImageCode
from l2rm_jax.models.layers import l2_normalise, linear

SMOOTHING = 9.0  # inverse temperature of the attention over regions, as in SCAN and SGRAF


def attend_regions(
    regions: Float[Array, "I R D"],
    region_mask: Float[Array, "I R"],
    words: Float[Array, "C L D"],
    mask: Float[Array, "C L"],
) -> Float[Array, "I C L D"]:
    """For each word of each caption, the region mixture of each image that answers it, unit length.

    Mixed by `region_weights`. Results at padded words are finite and meaningless.
    """
    weights = region_weights(regions, region_mask, words, mask)
    return l2_normalise(jnp.einsum("ircl,ird->icld", weights, regions))


def region_weights(
    regions: Float[Array, "I R D"],
    region_mask: Float[Array, "I R"],
    words: Float[Array, "C L D"],
    mask: Float[Array, "C L"],
) -> Float[Array, "I R C L"]:
    """How much each word of each caption looks at each region of each image, 1 in all.

    Region-word cosines pass a leaky ReLU, are normalised over the caption's words, sharpened and
    turned into weights over the image's own regions (text-to-image stacked cross attention, SCAN,
    as SGRAF uses it).
    """
    scores = jax.nn.leaky_relu(jnp.einsum("ird,cld->ircl", regions, words), 0.1)
    scores = l2_normalise(scores * mask)
    return jax.nn.softmax(SMOOTHING * scores, axis=1, where=region_mask[..., None, None] > 0)


def alignments(
    params: dict,
    images: ImageCode,
    words: Float[Array, "C L D"],
    mask: Float[Array, "C L"],
    overall: Float[Array, "C D"],
) -> Float[Array, "I C L+1 S"]:
    """Global (entry 0) and word-wise alignment vectors of each caption with every image.

    Squared differences, projected (`params["overall"]`, `params["local"]`) to unit vectors.
    """
    context = attend_regions(images.regions, images.mask, words, mask)
    local = l2_normalise(linear(params["local"], (context - words) ** 2))
    whole = l2_normalise(linear(params["overall"], (images.overall[:, None] - overall) ** 2))
    return jnp.concatenate([whole[:, :, None], local], axis=2)


def captions_at_once(
    chunk: int,
    regions: Float[Array, "I R D"],
    words: Float[Array, "J L D"],
    device: jax.Device | None = None,
) -> int:
    """`chunk` itself, unless that is 0: then as many captions as suit the device.

    That is two on a CPU, whose caches hold no more. An accelerator wants all at once; their
    vectors, an image's answer to every word of a caption, are given a sixteenth of its memory,
    counted six times for those that a backward pass holds.
    """
    device = device or jax.local_devices()[0]
    if chunk or device.platform == "cpu":
        return chunk or 2
    memory = (device.memory_stats() or {}).get("bytes_limit", 2**34)
    (images, _, dim), (captions, length, _) = regions.shape, words.shape
    caption = 6 * images * length * dim * words.dtype.itemsize
    return max(1, min(captions, memory // 16 // caption))


def map_captions(
    score: Callable, regions: Float[Array, "I R D"], fields: tuple[Array, ...], chunk: int
) -> Any:
    """`score(*fields)` of all captions, so many of them at once (`captions_at_once`).

    Fields and results have the captions on their first axis. The first field holds their words,
    which meet the `regions` of all images. What the scores need in the backward pass is computed
    again there: stored, the alignments of all pairs would not fit.
    """
    captions = len(fields[0])
    size = min(captions, captions_at_once(chunk, regions, fields[0]))
    whole = captions // size * size
    score = jax.checkpoint(score)
    chunks = [x[:whole].reshape(-1, size, *x.shape[1:]) for x in fields]
    scores = jax.lax.map(lambda texts: score(*texts), chunks)
    scores = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), scores)
    if whole == captions:
        return scores
    last = score(*[x[whole:] for x in fields])
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), scores, last)
