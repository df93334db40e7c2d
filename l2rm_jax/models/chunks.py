"""Score all captions with all images, chunk by chunk; see "Chunks of captions" in `README.md`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from l2rm_jax.models.encoders import ImageCode, TextCode

CACHE_BYTES = 2**22  # size of a chunk's array on a CPU; measured, the same for any core count
KEPT = "kept"  # the name of arrays that are stored for the backward pass


def map_captions(
    score: Callable,
    params: Any,
    images: ImageCode,
    texts: TextCode,
    chunk: int,
    sparse_gradient: bool = False,
    vectors: bool = True,
) -> Any:
    """Apply `score(params, images, texts)` to chunks of captions; join the results.

    Args:
      score: returns arrays with the captions on their first axis.
      chunk: captions per chunk; 0 chooses, see `captions_per_chunk`.
      sparse_gradient: the backward pass recomputes only the pairs whose cotangent is not zero. The
        result must be one array `[J, I]`, and each score must depend only on its own image and
        caption. This saves time if the loss uses few scores; a loss of hardest negatives uses at
        most 3 J of them.
      vectors: whether `score` makes a vector of the embedding's size for each word and image. If
        not, it makes at most one number for each region, word and image.
    """

    def score_with_constant_masks(params, *codes):
        codes = [code.replace(mask=jax.lax.stop_gradient(code.mask)) for code in codes]
        return score(params, *codes)

    numbers = images.regions.shape[2 if vectors else 1]
    size = captions_per_chunk(chunk, numbers, images.mask, texts.mask)
    forward = partial(_score_in_chunks, score_with_constant_masks, size)
    if sparse_gradient:
        forward = _with_sparse_gradient(score_with_constant_masks, forward)
    return forward(params, images, texts)


def pairwise(score: Callable) -> Callable:
    """Apply `score` to pairs only: image p with caption p.

    Args:
      score: `score(params, images, texts)`, which returns an array `[J, I, ...]`.

    Returns:
      A function with the same arguments for P images and P captions, which returns `[P, ...]`.
    """

    def score_pair(params, image, text) -> Array:
        return score(params, *jax.tree.map(lambda x: x[None], (image, text)))[0, 0]

    return jax.vmap(score_pair, (None, 0, 0))


def keep_for_backward(x: Array, axis: int, texts: TextCode) -> Array:
    """Mark `x` as expensive: it is stored for the backward pass, not recomputed.

    Mark the result of a matrix product, before cheap operations on it. It is stored at the width of
    the batch, so that chunks of all widths share one array.

    Args:
      axis: axis of `x` that runs over the words of the captions.
    """
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, max(0, texts.padded_length - texts.mask.shape[1]))
    stored = checkpoint_name(jnp.pad(x, padding), KEPT)
    return jax.lax.slice_in_dim(stored, 0, x.shape[axis], axis=axis)


def _score_in_chunks(
    score: Callable, size: int, params: Any, images: ImageCode, texts: TextCode
) -> Any:
    """Score all captions, `size` at a time.

    Captions are sorted by length, so that all captions of a chunk need a similar width. The last
    chunk is filled up with copies of the longest caption.
    """
    captions, length = texts.mask.shape
    chunks = -(-captions // size)
    policy = _store_kept_arrays(chunks)
    if chunks == 1:
        return jax.checkpoint(score, policy=policy)(params, images, texts)
    order = jnp.argsort(jnp.sum(texts.mask, axis=1))
    rows = jnp.pad(order, (0, chunks * size - captions), mode="edge").reshape(chunks, size)
    score_chunk = _at_smallest_width(score, widths(length), policy)
    scores = jax.lax.map(lambda chunk: score_chunk(params, images, chunk), _rows(texts, rows))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[jnp.argsort(order)], scores)


def _at_smallest_width(score: Callable, sizes: Sequence[int], policy: Callable) -> Callable:
    """Wrap `score` to compute at the smallest width of `sizes` that holds the longest caption.

    Both checkpoints are needed. Without the outer one, each chunk would store a copy of its inputs.
    Without the inner ones, the backward pass would compute the intermediate values of the chosen
    branch in one switch and pass them to another, with zeros for the other branches.
    """
    # In a loop, XLA cannot merge the forward pass with the recomputation: nothing to prevent.
    checkpoint = partial(jax.checkpoint, policy=policy, prevent_cse=False)

    def at_width(size: int) -> Callable:
        return checkpoint(lambda params, images, texts: score(params, images, texts.cut(size)))

    @checkpoint
    def score_chunk(params, images, texts):
        longest = jnp.sum(texts.mask, axis=1).max()
        index = jnp.searchsorted(jnp.array(sizes, longest.dtype), longest)
        return jax.lax.switch(index, [at_width(size) for size in sizes], params, images, texts)

    return score_chunk


def _store_kept_arrays(chunks: int) -> Callable:
    """Checkpoint policy: store what `keep_for_backward` marks, if the arrays of all chunks fit."""
    is_kept = jax.checkpoint_policies.save_only_these_names(KEPT)

    def policy(primitive, *inputs, **settings) -> bool:
        if not is_kept(primitive, *inputs, **settings):
            return False
        return fits(chunks * inputs[0].size * inputs[0].dtype.itemsize)

    return policy


def _with_sparse_gradient(score: Callable, forward: Callable) -> Callable:
    """Give `forward` a backward pass that skips the pairs whose cotangent is zero.

    `forward(params, images, texts)` returns scores `[J, I]`. The backward pass recomputes the other
    pairs with `score`, J pairs at a time.
    """

    score_pairs = pairwise(score)

    @jax.custom_vjp
    def scores(*inputs):
        return forward(*inputs)

    def backward(inputs, cotangents: Float[Array, "J I"]):
        params, images, texts = inputs
        needed = cotangents != 0
        # Needed pairs come first. The last iteration may include others, which add zeros.
        pairs = jnp.argsort(~needed, axis=None).reshape(-1, len(cotangents))

        def add(turn, sums):
            text, image = jnp.divmod(pairs[turn], cotangents.shape[1])
            _, pull = jax.vjp(score_pairs, params, _rows(images, image), _rows(texts, text))
            param_grads, image_grads, text_grads = pull(cotangents[text, image])
            return (
                jax.tree.map(jnp.add, sums[0], param_grads),
                _add_rows(sums[1], image, image_grads),
                _add_rows(sums[2], text, text_grads),
            )

        turns = -(-jnp.sum(needed) // len(cotangents))
        return jax.lax.fori_loop(0, turns, add, jax.tree.map(jnp.zeros_like, inputs))

    scores.defvjp(lambda *inputs: (forward(*inputs), inputs), backward)
    return scores


def _rows(tree: Any, index: Int[Array, "..."]) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x)[index], tree)


def _add_rows(tree: Any, index: Int[Array, " P"], rows: Any) -> Any:
    return jax.tree.map(lambda x, y: x.at[index].add(y), tree, rows)


def captions_per_chunk(
    chunk: int,
    numbers: int,
    images: Float[Array, "I R"],
    texts: Float[Array, "J L"],
    device: jax.Device | None = None,
) -> int:
    """Return `chunk`, or a size that suits the device if `chunk` is 0.

    On a CPU, one chunk's intermediate array (images x words x `numbers`) fits in `CACHE_BYTES`, but
    a chunk has at least two captions. On an accelerator, a chunk is as large as possible such that
    six of these arrays, which a backward pass holds, fit in a sixteenth of its memory.

    A size that divides the captions is preferred, if it is at least half of the largest one: then
    no chunk has to be filled up.

    Args:
      images, texts: masks.
    """
    if chunk:
        return chunk
    device = device or jax.local_devices()[0]
    captions, length = texts.shape
    caption = len(images) * length * numbers * images.dtype.itemsize
    if device.platform == "cpu":
        least, most = 2, CACHE_BYTES // caption
    else:
        least, most = 1, memory_of(device) // 16 // (6 * caption)
    most = max(least, min(captions, most))
    even = max((size for size in range(least, most + 1) if captions % size == 0), default=0)
    return even if 2 * even >= most else most


def fits(size: int, device: jax.Device | None = None) -> bool:
    """Whether a head may store an array of `size` bytes until the backward pass.

    At most 256 MiB on a CPU and a 64th of an accelerator's memory: SGR stores three large arrays,
    and a step of L2RM runs two heads.
    """
    device = device or jax.local_devices()[0]
    return size <= (2**28 if device.platform == "cpu" else memory_of(device) // 64)


def memory_of(device: jax.Device) -> int:
    """Bytes of memory of a device; 16 GiB if the device does not report it."""
    return (device.memory_stats() or {}).get("bytes_limit", 2**34)


def widths(length: int) -> list[int]:
    """Half, three quarters and all of `length`, rounded up to multiples of four words.

    Three widths, because each one is compiled separately.
    """
    return sorted({min(length, -(-length * quarters // 16) * 4) for quarters in (2, 3, 4)})
