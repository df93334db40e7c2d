"""IN2R's rectification without its refiner: a caption for an image, from the nearest clean pairs.

Liu et al., ICML 2026 (arXiv 2606.04061), as in its authors' code. A network keeps a queue of the
vectors of clean pairs. The prototype of an image of a noisy pair is the mean caption of the clean
pairs whose images are nearest, and likewise for a caption.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def append(
    queue: Float[Array, "length d"],
    count: Int[Array, ""],
    vectors: Float[Array, "batch d"],
    chosen: Bool[Array, " batch"],
) -> tuple[Float[Array, "length d"], Int[Array, ""]]:
    """Append some vectors to a ring; the oldest are replaced.

    Args:
        queue: the ring; rows that nothing was written to are not used.
        count: number of vectors appended so far; the next one goes to row ``count % length``.
        vectors: vectors of a batch, no more than the length of the ring.
        chosen: which of them to append, in order.

    Returns:
        The new ring and count.
    """
    place = (count + jnp.cumsum(chosen) - 1) % len(queue)
    place = jnp.where(chosen, place, len(queue))  # out of range
    new = queue.at[place].set(jax.lax.stop_gradient(vectors), mode="drop")
    return new, count + jnp.sum(chosen, dtype=count.dtype)


def nearest_mean(
    queries: Float[Array, "batch d"],
    keys: Float[Array, "length d"],
    values: Float[Array, "length d"],
    count: Int[Array, ""],
    *,
    k: int,
) -> Float[Array, "batch d"]:
    """Mean of the values whose keys are nearest to each query, as a unit vector.

    Args:
        queries: unit vectors of the images (or captions) of a batch.
        keys: ring of images (captions) of clean pairs.
        values: ring of the captions (images) of the same pairs.
        count: number of pairs appended so far; only these are used.
        k: number of neighbours, 1 to ``length``.

    Returns:
        Prototypes without gradient; zeros while the ring is empty.
    """
    filled = jnp.arange(len(keys)) < count
    cosines = jnp.where(filled[None], jax.lax.stop_gradient(queries) @ keys.T, -jnp.inf)
    nearest, rows = jax.lax.top_k(cosines, k)
    weights = jnp.isfinite(nearest)[..., None].astype(values.dtype)
    return jax.lax.stop_gradient(_unit(jnp.sum(weights * values[rows], axis=1)))


def _unit(vectors: Float[Array, "batch d"]) -> Float[Array, "batch d"]:
    """Scale vectors to unit length; zeros stay zeros."""
    squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1.0))
