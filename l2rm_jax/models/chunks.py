"""All captions with all images: so many captions at once, and back through few pairs alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.stages import at_least_width, at_width, bytes_of, composed, handed_on

CACHED = 2**22  # bytes that a CPU is best given at once, whatever its cores


def map_captions(
    stages: Sequence[Callable],
    params: Any,
    images: ImageCode,
    texts: TextCode,
    chunk: int,
    few_slopes: bool = False,
    vectors: bool = True,
) -> Any:
    """Scores of all captions, made by `stages` (see `composed`) of so many captions at once
    (`captions_at_once`).

    Results have the captions on their first axis. Without `few_slopes`, what the stages hand on is
    kept for the backward pass where it `fits`. All else is computed again there: stored, the
    alignments of all pairs would fit in no memory.

    With `few_slopes`, results are one array `[J, I]`, each score depends on its own caption and
    image alone, and most scores have no slope: a loss of the hardest negatives of J pairs, without
    ties, gives one to at most 3 J of them. The backward pass then computes again only the pairs
    that have one, J at once whatever the chunk, each by itself: through all pairs, it would take
    longer than without.

    Without `vectors`, what the stages make of a word and an image is no vector as long as theirs,
    but a number for each region at most.
    """
    numbers = images.regions.shape[2 if vectors else 1]
    chunk = captions_at_once(chunk, numbers, images.mask, texts.mask)
    if few_slopes:
        forward = partial(_in_chunks, stages, chunk)
        return _through_pairs(composed(stages), forward)(params, images, texts)
    if not fits(bytes_of(handed_on(stages, params, images, texts))):
        stages = [composed(stages)]
    return _in_chunks(stages, chunk, params, images, texts)


def _in_chunks(
    stages: Sequence[Callable], size: int, params: Any, images: ImageCode, texts: TextCode
) -> Any:
    """So many captions at once, in the order of their length, each chunk at the smallest of
    `widths` that holds its longest one: padded to the longest of a batch, half of the words would
    be padding."""
    captions, length = texts.mask.shape
    if size >= captions:
        return at_least_width(stages, [length])(params, images, texts)
    whole = captions // size * size
    order = jnp.argsort(jnp.sum(texts.mask, axis=1))
    in_order = jnp.all(order == jnp.arange(captions))
    texts = jax.lax.cond(in_order, lambda texts, _: texts, _rows, texts, order)
    score = at_least_width(stages, widths(length))
    chunks = jax.tree.map(lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), texts)
    scores = jax.lax.map(lambda chunk: score(params, images, chunk), chunks)
    scores = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), scores)
    if whole < captions:
        last = score(params, images, jax.tree.map(lambda x: x[whole:], texts))
        scores = jax.tree.map(lambda *parts: jnp.concatenate(parts), scores, last)
    return _rows(scores, jnp.argsort(order))


def _through_pairs(score: Callable, forward: Callable) -> Callable:
    """`forward(params, images, texts)`, scores `[J, I]`, with the gradient of `score` for those
    pairs alone that have a slope."""

    def of_pair(params, image, text) -> Float[Array, ""]:
        return score(params, *jax.tree.map(lambda x: x[None], (image, text)))[0, 0]

    @jax.custom_vjp
    def scores(*inputs):
        return forward(*inputs)

    def backward(inputs, slopes: Float[Array, "J I"]):
        params, images, texts = inputs
        captions, length = texts.mask.shape
        of_pairs = at_width(jax.vmap(of_pair, (None, 0, 0)), length)
        # Pairs with a slope first, as many at once as there are captions. Of the last ones some
        # may have none: they add zeros.
        sloped = slopes != 0
        pairs = jnp.argsort(~sloped, axis=None).reshape(-1, captions)

        def add(turn, sums):
            text, image = jnp.divmod(pairs[turn], slopes.shape[1])
            _, pull = jax.vjp(of_pairs, params, _rows(images, image), _rows(texts, text))
            of_params, of_images, of_texts = pull(slopes[text, image])
            return (
                jax.tree.map(jnp.add, sums[0], of_params),
                _add_rows(sums[1], image, of_images),
                _add_rows(sums[2], text, of_texts),
            )

        turns = -(-jnp.sum(sloped) // captions)
        return jax.lax.fori_loop(0, turns, add, jax.tree.map(jnp.zeros_like, inputs))

    scores.defvjp(lambda *inputs: (forward(*inputs), inputs), backward)
    return scores


def _rows(tree: Any, index: Int[Array, " P"]) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x)[index], tree)


def _add_rows(tree: Any, index: Int[Array, " P"], rows: Any) -> Any:
    return jax.tree.map(lambda x, y: x.at[index].add(y), tree, rows)


def captions_at_once(
    chunk: int,
    numbers: int,
    images: Float[Array, "I R"],
    texts: Float[Array, "J L"],
    device: jax.Device | None = None,
) -> int:
    """`chunk` itself, unless that is 0: then as many captions as suit the device.

    What a caption makes with all images, so many `numbers` a word and image, fills a CPU's caches
    (`CACHED`), but two captions are taken at least. An accelerator wants all at once; there this is
    given a sixteenth of its memory, counted six times for what a backward pass holds. Somewhat
    fewer captions are taken where they make up all: the rest would be a program of its own to
    compile.

    Args:
      images, texts: masks.
    """
    if chunk:
        return chunk
    device = device or jax.local_devices()[0]
    captions, length = texts.shape
    caption = len(images) * length * numbers * images.dtype.itemsize
    if device.platform == "cpu":
        least, most = 2, CACHED // caption
    else:
        least, most = 1, memory_of(device) // 16 // (6 * caption)
    most = max(least, min(captions, most))
    even = max((size for size in range(least, most + 1) if captions % size == 0), default=0)
    return even if 2 * even >= most else most


def fits(size: int, device: jax.Device | None = None) -> bool:
    """Whether a head may keep so many bytes on each device until its backward pass: 256 MiB on a
    CPU, a 32nd of an accelerator's memory. A step may hold two heads' (L2RM's, of two streams), and
    a process takes up to four times as much."""
    device = device or jax.local_devices()[0]
    return size <= (2**28 if device.platform == "cpu" else memory_of(device) // 32)


def memory_of(device: jax.Device) -> int:
    """Bytes; 16 GiB where the device does not tell."""
    return (device.memory_stats() or {}).get("bytes_limit", 2**34)


def widths(length: int) -> list[int]:
    """Half of `length`, three quarters, in multiples of four words, and all; few, as each is a
    program of its own to compile."""
    return sorted({min(length, -(-length * quarters // 16) * 4) for quarters in (2, 3, 4)})
