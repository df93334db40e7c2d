"""Stacked cross attention and the alignment vectors that SGR and SAF start from."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.encoders import ImageCode, TextCode
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
    return l2_normalise(mix_regions(weights, regions))


@jax.custom_vjp
def mix_regions(
    weights: Float[Array, "I R C L"], regions: Float[Array, "I R D"]
) -> Float[Array, "I C L D"]:
    """Weighted sums of each image's regions.

    The gradients (reverse mode alone) are what autodiff finds, in an order of axes that a CPU need
    not transpose: a third of the time.
    """
    return jnp.einsum("ircl,ird->icld", weights, regions)


def _mix_backward(inputs: tuple, slopes: Float[Array, "I C L D"]) -> tuple:
    weights, regions = inputs
    of_weights = jnp.einsum("icld,ird->iclr", slopes, regions)
    return jnp.moveaxis(of_weights, 3, 1), jnp.einsum("ircl,icld->ird", weights, slopes)


mix_regions.defvjp(lambda *inputs: (mix_regions(*inputs), inputs), _mix_backward)


@jax.custom_vjp
def squared_difference(
    context: Float[Array, "I C L D"], words: Float[Array, "C L D"]
) -> Float[Array, "I C L D"]:
    """`(context - words) ** 2`.

    The gradient of the words (reverse mode alone) is summed over images by a product with ones, of
    full precision: as a reduction over the first axis it takes a CPU up to twenty times as long.
    """
    return (context - words) ** 2


def _squared_difference_backward(inputs: tuple, slopes: Float[Array, "I C L D"]) -> tuple:
    context, words = inputs
    slopes = 2 * slopes * (context - words)
    ones, exact = jnp.ones(len(slopes), slopes.dtype), jax.lax.Precision.HIGHEST
    return slopes, -jnp.einsum("i,icld->cld", ones, slopes, precision=exact)


squared_difference.defvjp(
    lambda *inputs: (squared_difference(*inputs), inputs), _squared_difference_backward
)


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


def alignments(params: dict, images: ImageCode, texts: TextCode) -> Float[Array, "I C L+1 S"]:
    """Global (entry 0) and word-wise alignment vectors of each caption with every image.

    Squared differences, projected (`params["overall"]`, `params["local"]`) to unit vectors.
    """
    context = attend_regions(images.regions, images.mask, texts.words, texts.mask)
    local = l2_normalise(linear(params["local"], squared_difference(context, texts.words)))
    whole = (images.overall[:, None] - texts.overall) ** 2
    whole = l2_normalise(linear(params["overall"], whole))
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
    counted six times for those that a backward pass holds. Somewhat fewer are taken where they make
    up all captions: the rest would be a program of its own to compile.
    """
    device = device or jax.local_devices()[0]
    if chunk or device.platform == "cpu":
        return chunk or 2
    memory = (device.memory_stats() or {}).get("bytes_limit", 2**34)
    (images, _, dim), (captions, length, _) = regions.shape, words.shape
    caption = 6 * images * length * dim * words.dtype.itemsize
    most = max(1, min(captions, memory // 16 // caption))
    even = max(size for size in range(1, most + 1) if captions % size == 0)
    return even if 2 * even >= most else most


def map_captions(
    score: Callable, params: Any, images: ImageCode, texts: TextCode, chunk: int
) -> Any:
    """`score(params, images, texts)` of all captions, so many at once (`captions_at_once`).

    Results have the captions on their first axis. Captions go in the order of their length, and
    each chunk is scored at the smallest of `widths` that holds its longest one: padded to the
    longest of a batch, half of the words would be padding. What the scores need in the backward
    pass is computed again there: stored, the alignments of all pairs would not fit.
    """
    captions, length = texts.mask.shape
    size = min(captions, captions_at_once(chunk, images.regions, texts.words))
    if size == captions:
        return jax.checkpoint(_at_width(score, length))(params, images, texts)
    whole = captions // size * size
    order = jnp.argsort(jnp.sum(texts.mask, axis=1))
    texts = jax.tree.map(lambda x: jnp.asarray(x)[order], texts)
    score = jax.checkpoint(_at_least_width(score, widths(length)))
    chunks = jax.tree.map(lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), texts)
    scores = jax.lax.map(lambda chunk: score(params, images, chunk), chunks)
    scores = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), scores)
    if whole < captions:
        last = score(params, images, jax.tree.map(lambda x: x[whole:], texts))
        scores = jax.tree.map(lambda *parts: jnp.concatenate(parts), scores, last)
    position = jnp.argsort(order)
    return jax.tree.map(lambda x: x[position], scores)


def widths(length: int) -> list[int]:
    """Half of `length`, three quarters, in multiples of four words, and all; few, as each is a
    program of its own to compile."""
    return sorted({min(length, -(-length * quarters // 16) * 4) for quarters in (2, 3, 4)})


def _at_least_width(score: Callable, sizes: Sequence[int]) -> Callable:
    """`score(params, images, texts)`, computed at the smallest of `sizes` that holds the texts.

    The backward pass takes the same branch: derived from a switch, it would store what the
    branches not taken need too.
    """

    def chosen(texts: TextCode) -> Int[Array, ""]:
        longest = jnp.sum(texts.mask, axis=1).max()
        return jnp.searchsorted(jnp.array(sizes), longest)

    branches = [_at_width(score, size) for size in sizes]

    def pull_of(branch: Callable) -> Callable:
        return lambda inputs, slopes: jax.vjp(branch, *inputs)[1](slopes)

    @jax.custom_vjp
    def switch(*inputs):
        return jax.lax.switch(chosen(inputs[2]), branches, *inputs)

    def backward(inputs, slopes):
        pulls = [pull_of(branch) for branch in branches]
        return jax.lax.switch(chosen(inputs[2]), pulls, inputs, slopes)

    switch.defvjp(lambda *inputs: (switch(*inputs), inputs), backward)
    return switch


def _at_width(score: Callable, size: int) -> Callable:
    """`score(params, images, texts)` of the first `size` words, without gradients of the masks,
    which would be computed and not used."""

    def without_slope(code: ImageCode | TextCode) -> ImageCode | TextCode:
        return code.replace(mask=jax.lax.stop_gradient(code.mask))

    return lambda params, images, texts: score(
        params, without_slope(images), without_slope(texts.cut(size))
    )
