"""Search exactly: by vectors in blocks of the gallery, among all pairs, or among proposed pairs."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from l2rm_jax.errors import ConfigError
from l2rm_jax.models.pem import MIN_SQUARED_DISTANCE
from l2rm_jax.retriever.encodings import EncodedCaptions, EncodedImages, Encodings
from l2rm_jax.retriever.network import Network

Found = tuple[Int[np.ndarray, "Q k"], Float[np.ndarray, "Q k"]]  # gallery rows and scores
Done = Callable[[int], None]  # called with the number of rows or pairs that are done

_BLOCK = 1024  # gallery rows that heads without vectors score at once
BLOCK_BYTES = 1 << 27  # of gallery vectors that are compared at once
SCORES = 1 << 26  # scores that are computed at once
GROUP = 128  # size of groups of neighbours; at first, only their highest scores are sorted


def check_top_k(top_k: int) -> None:
    """Check the requested number of results.

    Raises:
      ConfigError: not a whole number, or less than 1.
    """
    if not isinstance(top_k, int | np.integer) or top_k < 1:
        raise ConfigError(f"top_k: found {top_k!r}, expected a whole number >= 1")


def top_of_vectors(
    queries: Sequence[Float[np.ndarray, "Q d"]],
    gallery: Sequence[Float[np.ndarray, "N d"]],
    metric: str,
    k: int,
    done: Done,
) -> Found:
    """Rows and scores of the k best gallery vectors of each query, best first.

    A score is the mean over networks of the vectors' inner product (`metric` "ip"), or minus their
    Euclidean distance ("l2sq"). Ties are ordered by row. The gallery is read
    block by block, so it may be a mapped file of any size; so may the queries.

    Args:
      queries: vectors of the queries, by network.
      gallery: vectors of the gallery, by network; k or more of them.
      metric: "ip" or "l2sq".
      k: number of results, at least 1.
      done: called with the number of compared gallery vectors.
    """
    count = len(gallery[0])
    block = max(GROUP, BLOCK_BYTES // (4 * sum(part.shape[1] for part in gallery)))
    block = min(block // GROUP * GROUP, -(-count // GROUP) * GROUP)
    size = max(1, SCORES // block)
    asked = [[part[i : i + size] for part in queries] for i in range(0, len(queries[0]), size)]
    shapes = [(len(some[0]), k) for some in asked]
    best = [(jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32)) for shape in shapes]
    for start in range(0, count, block):
        parts = [_padded(part[start : start + block], block) for part in gallery]
        valid = min(block, count - start)
        for number, some in enumerate(asked):
            best[number] = _merge_block(best[number], some, parts, start, valid, metric, k)
        done(valid)
    scores, rows = (np.concatenate(found) for found in zip(*best, strict=True))
    return rows.astype(np.int64), scores


def _padded(vectors: np.ndarray, rows: int) -> np.ndarray:
    """Pad the last block of a gallery to `rows`, to avoid another compilation."""
    if len(vectors) == rows:
        return np.ascontiguousarray(vectors)
    return np.pad(vectors, ((0, rows - len(vectors)), (0, 0)))


@partial(jax.jit, static_argnames=("metric", "k"))
def _merge_block(
    best: tuple[Float[Array, "Q k"], Int[Array, "Q k"]],
    queries: list[Float[Array, "Q d"]],
    block: list[Float[Array, "n d"]],
    start: Int[Array, ""],
    valid: Int[Array, ""],
    metric: str,
    k: int,
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Merge the k best so far with a block of the gallery, whose first rows are valid."""
    scores = sum(map(partial(_scores, metric), queries, block)) / len(queries)
    scores = jnp.where(jnp.arange(scores.shape[1]) < valid, scores, -jnp.inf)
    scores, rows = _top_k(scores, k)
    scores = jnp.concatenate([best[0], scores], axis=1)
    rows = jnp.concatenate([best[1], start + rows], axis=1)
    scores, places = jax.lax.top_k(scores, k)  # of equal scores the first one: the lower row
    return scores, jnp.take_along_axis(rows, places, axis=1)


def _scores(
    metric: str, queries: Float[Array, "Q d"], block: Float[Array, "n d"]
) -> Float[Array, "Q n"]:
    products = jnp.matmul(queries, block.T, precision=jax.lax.Precision.HIGHEST)
    if metric == "ip":
        return products
    squared = jnp.sum(queries**2, axis=1)[:, None] + jnp.sum(block**2, axis=1)[None] - 2 * products
    return -jnp.sqrt(jnp.maximum(squared, MIN_SQUARED_DISTANCE))


def _top_k(scores: Float[Array, "Q n"], k: int) -> tuple[Float[Array, "Q m"], Int[Array, "Q m"]]:
    """The k highest of each row, or all if fewer, and their columns; ties as in `lax.top_k`.

    Only the highest score of each group of neighbours is sorted first: the k best scores are in the
    k groups with the highest scores, because each of these groups holds a score that is at least as
    high, and in a lower column if equal.
    """
    count, size = scores.shape
    k = min(k, size)
    if size < 2 * GROUP or size % GROUP or k > size // GROUP:
        return tuple(jax.lax.top_k(scores, k))
    grouped = scores.reshape(count, size // GROUP, GROUP)
    _, groups = jax.lax.top_k(grouped.max(axis=2), k)
    groups = jnp.sort(groups, axis=1)  # so that columns ascend, for the order of ties
    candidates = jnp.take_along_axis(grouped, groups[..., None], axis=1).reshape(count, -1)
    columns = (groups[..., None] * GROUP + jnp.arange(GROUP)[None, None]).reshape(count, -1)
    scores, places = jax.lax.top_k(candidates, k)
    return scores, jnp.take_along_axis(columns, places, axis=1)


def top_of_blocks(blocks: Iterator[tuple[int, Float[np.ndarray, "Q n"]]], k: int) -> Found:
    """Find the k best from blocks of scores, given as (first gallery row, scores)."""
    rows, scores = None, None
    for start, block in blocks:
        columns = np.broadcast_to(np.arange(start, start + block.shape[1]), block.shape)
        if rows is not None:
            columns = np.concatenate([rows, columns], axis=1)
            block = np.concatenate([scores, block], axis=1)
        rows, scores = sort_columns(columns, block, k)
    return rows, scores


def sort_columns(rows: Int[np.ndarray, "Q n"], scores: Float[np.ndarray, "Q n"], k: int) -> Found:
    """The k highest scores of each query, best first, and their gallery rows; ties by row."""
    order = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def among_all(
    networks: Sequence[Network], queries: Encodings, gallery: Encodings, k: int, done: Done
) -> Found:
    """Score all pairs, a block of the gallery at a time."""

    def blocks() -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, len(gallery), _BLOCK):
            block = gallery[start : start + _BLOCK]
            if isinstance(gallery, EncodedImages):
                yield start, mean_similarity(networks, block, queries, done).T
            else:
                yield start, mean_similarity(networks, queries, block, done)

    return top_of_blocks(blocks(), k)


def among_proposed(
    networks: Sequence[Network],
    queries: Encodings,
    gallery: Encodings,
    proposed: Int[np.ndarray, "Q C"],
    k: int,
    done: Done,
) -> Found:
    """Score only the proposed gallery rows of each query."""
    asked = np.repeat(np.arange(len(queries)), proposed.shape[1])
    by_image = isinstance(queries, EncodedImages)
    images, captions = (queries, gallery) if by_image else (gallery, queries)
    rows = (asked, proposed.ravel()) if by_image else (proposed.ravel(), asked)
    used_images, image_rows = np.unique(rows[0], return_inverse=True)
    used_captions, caption_rows = np.unique(rows[1], return_inverse=True)
    parts = images[used_images].parts, captions[used_captions].parts
    pairs = np.stack([image_rows, caption_rows], axis=1)
    scores = np.zeros(len(pairs), np.float32)
    for network, *both in zip(networks, *parts, strict=True):
        scores += network.pair_similarities(*both, pairs) / np.float32(len(networks))
        done(len(pairs))
    return sort_columns(proposed, scores.reshape(proposed.shape), k)


def mean_similarity(
    networks: Sequence[Network], images: EncodedImages, captions: EncodedCaptions, done: Done
) -> Float[np.ndarray, "I J"]:
    """Mean of the networks' similarities."""
    parts = zip(networks, images.parts, captions.parts, strict=True)
    first, *others = (network.similarity(*both, done) for network, *both in parts)
    return sum(others, first) / len(networks) if others else first
