"""One vector for a set of vectors: the regions of an image, or the words of a caption.

The vector holds the mean, the standard deviation and the maximum over the set; the means of the
four quadrants, if the regions are the cells of a square grid; and the shares of 256 visual words,
which are clusters of all regions. These numbers are standardised and rotated to the 400 leading
principal components. The vectors of one modality do not depend on the other.

References:
    Csurka et al., Visual Categorization with Bags of Keypoints, ECCV workshop 2004.
    van Gemert et al., Visual Word Ambiguity, PAMI 2010: a region counts for several words.
"""

from collections.abc import Callable, Iterable
from functools import partial
from tempfile import TemporaryFile, gettempdir
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from l2rm_jax.linear.directions import EXACT, principal_directions, symmetric_directions
from l2rm_jax.linear.rows import padded_blocks

DIMENSIONS = 400
VISUAL_WORDS = 256
SOFTNESS = 0.15  # of the counts of visual words, relative to the squared distance to the nearest
_BLOCK = 256  # sets
_FIT_SETS = 10_000  # maximum number of sampled sets for the statistics
_FIT_VECTORS = 32_768  # number of their vectors for the visual words
_CLUSTER_STEPS = 15

# Maps rows to their sets [n, R, d], zeros after the end of a set, and the sizes [n] of the sets.
ReadSets = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Pooling(NamedTuple):
    """Fitted parameters that turn a set into a vector."""

    words: Float32[np.ndarray, "words d"]
    width: Float32[np.ndarray, ""]  # squared distance by which the share of a word falls by e
    mean: Float32[np.ndarray, " pooled"]
    rotation: Float32[np.ndarray, "pooled dimensions"]  # scales first


def set_rows(
    read: ReadSets, count: int, pooling: Pooling
) -> Float32[np.ndarray, "count dimensions"]:
    """Pool all sets.

    Args:
      read: reads sets.
      count: number of sets; rows 0 to count - 1.
      pooling: fitted to these or to other sets.

    Returns:
      The vectors of the sets, in a memory-mapped scratch file.
    """
    shape = (count, pooling.rotation.shape[1])
    with TemporaryFile() as file:
        try:
            for rows, filled in padded_blocks(np.arange(count), _BLOCK):
                block = np.asarray(pooled_vectors(*read(rows), pooling), np.float32)[:filled]
                file.write(np.ascontiguousarray(block).data)
            file.flush()  # only then mapped: writing to a map of a full disk ends the process
        except OSError as error:
            raise OSError(error.errno, error.strerror, gettempdir()) from error
        return np.memmap(file, np.float32, "r", shape=shape)


@jax.jit
def pooled_vectors(
    sets: Float[Array, "n R d"], sizes: Int[Array, " n"], pooling: Pooling
) -> Float[Array, "n dimensions"]:
    """Return the vector of each set.

    Args:
      sets: the sets; values after the end of a set are ignored.
      sizes: number of vectors of each set, 1 to R.
      pooling: the fitted pooling. If it has means of quadrants, but R is not a square as in the
        fit, these means are zeros.
    """
    words, width, mean, rotation = pooling
    with_quadrants = len(mean) > pooled_size(sets.shape[2], len(words), with_quadrants=False)
    numbers = pooled_numbers(sets, sizes, words, width, with_quadrants)
    return jnp.matmul(numbers - mean[None], rotation, precision="highest")


def pooled_size(d: int, words: int, with_quadrants: bool) -> int:
    """Return the size of `pooled_numbers` for sets of d-dimensional vectors."""
    return (7 if with_quadrants else 3) * d + words


def may_be_grid(places: int) -> bool:
    """Whether this number of vectors can be the cells of a square grid with quadrants."""
    side = round(places**0.5)
    return side >= 3 and side * side == places


def fit_pooling(read: ReadSets, count: int) -> Pooling:
    """Fit visual words, and principal components of the standardised pooled numbers."""
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(count, min(count, _FIT_SETS), replace=False))
    vectors, is_grid = _sample_vectors(read, sample, rng)
    words = cluster(vectors, VISUAL_WORDS, rng)
    width = np.float32(SOFTNESS * float(jnp.mean(jnp.min(_distances(vectors, words), axis=1))))
    blocks = (
        np.asarray(pooled_numbers(*read(rows), words, width, is_grid))[:filled]
        for rows, filled in padded_blocks(sample, _BLOCK)
    )
    fit = _rotation_of_few if len(sample) <= EXACT else _rotation
    mean, rotation = fit(blocks)
    return Pooling(words, width, mean.astype(np.float32), rotation.astype(np.float32))


def _rotation(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean, and the principal components of standardised numbers with their scales."""
    products, total = 0.0, 0
    for pooled in blocks:
        with_one = np.pad(pooled, ((0, 0), (1, 0)), constant_values=1)
        products = products + (with_one.T @ with_one).astype(np.float64)
        total += len(pooled)
    mean = products[0, 1:] / total
    covariance = products[1:, 1:] / total - np.outer(mean, mean)
    scale = _scales(mean, np.diag(covariance))
    correlation = scale[:, None] * covariance * scale
    return mean, scale[:, None] * symmetric_directions(correlation, DIMENSIONS)


def _rotation_of_few(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the same as `_rotation`, for sets whose numbers fit into memory."""
    pooled = np.concatenate([*blocks]).astype(np.float64)
    mean = pooled.mean(axis=0)
    scale = _scales(mean, pooled.var(axis=0))
    standardised = (pooled - mean) * scale
    return mean, scale[:, None] * principal_directions(standardised, DIMENSIONS)


def _scales(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return 1 / deviation of each number; 0 where all sets agree, up to rounding errors."""
    return np.where(variance > 1e-6 * (1e-12 + mean**2), 1 / np.sqrt(variance.clip(1e-30)), 0)


def cluster(
    vectors: Float[np.ndarray, "n d"], count: int, rng: np.random.Generator
) -> Float32[np.ndarray, "count d"]:
    """Return the centres of k-means clusters after some steps of Lloyd's algorithm.

    Centres start at random vectors; a centre that loses all its vectors does not move.
    """
    start = vectors[rng.choice(len(vectors), count, replace=len(vectors) < count)]
    return np.asarray(_lloyd(jnp.asarray(vectors), jnp.asarray(start)))


def looks_like_grid(sets: Float[np.ndarray, "n R d"]) -> bool:
    """Whether the R vectors of each set are the cells of a square grid, row by row.

    If they are, a cell is more similar to the cell one row below, `side` positions later, than to
    its diagonal neighbours, `side` - 1 and `side` + 1 positions later. In a set without this order,
    the similarity hardly changes from one distance to the next.
    """
    if len(sets) < 2 or not may_be_grid(sets.shape[1]):
        return False
    side = round(sets.shape[1] ** 0.5)
    centred = sets - sets.mean(axis=(0, 1))
    centred /= np.maximum(np.linalg.norm(centred, axis=2, keepdims=True), 1e-12)

    def likeness(gap: int) -> np.ndarray:
        return np.einsum("nrd,nrd->nr", centred[:, :-gap], centred[:, gap:]).mean(axis=1)

    excess = likeness(side) - (likeness(side - 1) + likeness(side + 1)) / 2
    return bool(excess.mean() > 5 * excess.std() / np.sqrt(len(sets)))


def _sample_vectors(
    read: ReadSets, sample: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, bool]:
    """Sample vectors from the sampled sets, equally many per set; detect whether sets are grids."""
    each = max(1, _FIT_VECTORS // len(sample))
    parts, is_grid = [], True
    for rows, filled in padded_blocks(sample, _BLOCK):
        sets, sizes = (array[:filled] for array in read(rows))
        whole = bool((sizes == sets.shape[1]).all())
        if not parts:
            is_grid = whole and looks_like_grid(sets)
        is_grid = is_grid and whole
        order = rng.random(sets.shape[:2])
        order[np.arange(sets.shape[1]) >= sizes[:, None]] = 2  # behind all real ones
        chosen = np.argsort(order, axis=1)[:, :each]
        real = np.take_along_axis(order, chosen, axis=1) < 2
        parts.append(np.take_along_axis(sets, chosen[..., None], axis=1)[real])
    return np.concatenate(parts), is_grid


@jax.jit
def _lloyd(vectors: jax.Array, centres: jax.Array) -> jax.Array:
    def step(_, centres):
        nearest = jnp.argmin(_distances(vectors, centres), axis=1)
        sums = jax.ops.segment_sum(vectors, nearest, len(centres))
        counts = jax.ops.segment_sum(jnp.ones(len(vectors)), nearest, len(centres))[:, None]
        return jnp.where(counts > 0, sums / jnp.maximum(counts, 1), centres)

    return jax.lax.fori_loop(0, _CLUSTER_STEPS, step, centres)


@jax.jit
def _distances(vectors: jax.Array, centres: jax.Array) -> jax.Array:
    """Squared distances, [n, d] and [k, d] to [n, k]."""
    products = jnp.matmul(vectors, centres.T, precision="highest")
    squares = jnp.sum(vectors**2, axis=1)[:, None] + jnp.sum(centres**2, axis=1)[None]
    return jnp.maximum(squares - 2 * products, 0)


@partial(jax.jit, static_argnames="with_quadrants")
def pooled_numbers(
    sets: Float[Array, "n R d"],
    sizes: Int[Array, " n"],
    words: Float[Array, "words d"],
    width: Float[Array, ""],
    with_quadrants: bool,
) -> Float[Array, "n pooled"]:
    """Return mean, deviation, maximum and shares of words of each set, then means of quadrants."""
    n, places, d = sets.shape
    real = (jnp.arange(places)[None] < sizes[:, None])[..., None]
    count = sizes[:, None].astype(sets.dtype)
    mean = jnp.sum(sets, axis=1, where=real) / count
    variance = jnp.sum((sets - mean[:, None]) ** 2, axis=1, where=real) / count
    largest = jnp.max(sets, axis=1, where=real, initial=-jnp.inf)
    distances = _distances(sets.reshape(-1, d), words)
    shares = jax.nn.softmax(-distances / jnp.maximum(width, 1e-12), axis=1).reshape(n, places, -1)
    shares = jnp.sqrt(jnp.sum(shares, axis=1, where=real) / count)
    parts = [mean, jnp.sqrt(variance), largest, shares]
    if with_quadrants:
        parts += _quadrants(sets) if may_be_grid(places) else [jnp.zeros((n, 4 * d))]
    return jnp.concatenate(parts, axis=1)


def _quadrants(sets: Float[Array, "n R d"]) -> list[Float[Array, "n d"]]:
    """Means of the quadrants of square grids; a middle row or column belongs to the later one."""
    n, places, d = sets.shape
    side = round(places**0.5)
    grid, half = sets.reshape(n, side, side, d), side // 2
    halves = slice(None, half), slice(half, None)
    return [jnp.mean(grid[:, rows, columns], axis=(1, 2)) for rows in halves for columns in halves]
