"""Nearest neighbours across modalities, or their transport: RCSL's pseudo-pairs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

CHUNK = 512  # queries at once: memory grows with their product with the keys, not with all queries
SEARCHES = ("nearest", "transport")
ITERATIONS = 20  # of Sinkhorn, each two passes over all similarities


@partial(jax.jit, static_argnames="chunk")
def nearest(
    queries: Float[np.ndarray, "n D"],
    keys: Float[np.ndarray, "m D"],
    handicap: Float[np.ndarray, " m"] | float = 0.0,
    *,
    chunk: int = CHUNK,
) -> Int[jax.Array, " n"]:
    """The row of the key with the largest dot product with each query, less the key's handicap; the
    first of equals."""
    return jax.lax.map(lambda query: jnp.argmax(keys @ query - handicap), queries, batch_size=chunk)


@partial(jax.jit, static_argnames="chunk")
def handicaps(
    queries: Float[np.ndarray, "n D"],
    keys: Float[np.ndarray, "m D"],
    tau: float,
    *,
    chunk: int = CHUNK,
) -> tuple[Float[jax.Array, " n"], Float[jax.Array, " m"]]:
    """What keeps a vector that is near to everything from being everyone's nearest.

    The dual potentials, times -tau, of the entropic transport from all queries to all keys, each
    side evenly weighted, at the cost of minus the dot product. The plan, of which no more than
    `chunk` rows are held (`ot.partial_sinkhorn` holds all), has its largest entry of a row where
    `nearest` finds it with these.

    Args:
      queries, keys: unit vectors.
      tau: entropic regularisation, > 0.
    """

    def balance(rows, columns, potential):
        def total(row):
            return jax.nn.logsumexp(columns @ row / tau + potential)

        return -jnp.log(len(rows)) - jax.lax.map(total, rows, batch_size=chunk)

    def iterate(_, both):
        of_queries = balance(queries, keys, both[1])
        return of_queries, balance(keys, queries, of_queries)

    start = jnp.zeros(len(queries)), jnp.zeros(len(keys))
    both = jax.lax.fori_loop(0, ITERATIONS, iterate, start)
    return tuple(-tau * potential for potential in both)


def pseudo_pairs(
    images: Float[np.ndarray, "N D"],
    captions: Float[np.ndarray, "N D"],
    image_of: Int[np.ndarray, " N"],
    unpaired: Int[np.ndarray, " n"],
    transport_tau: float | None = None,
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """What is nearest to the image, and to the caption, of each unpaired pair, among the unpaired.

    Args:
      images: embedding of the image of each pair.
      captions: embedding of its caption.
      image_of: row of its image: pairs of the same row have the same image.
      unpaired: rows of the pairs to search and to search among.
      transport_tau: where given, the search is for the largest entries of a transport plan with
        this regularisation, which gives every image, and every caption, its share.

    Returns:
      By pair, the pair whose image is nearest to its caption, and the pair whose caption is nearest
      to its image (RCSL, before Eq. 7); the pair itself where it is paired.
    """
    image_for, caption_for = np.arange(len(images)), np.arange(len(images))
    if len(unpaired):
        _, first, of = np.unique(image_of[unpaired], return_index=True, return_inverse=True)
        once = unpaired[first]  # a pair for each of the images
        sides = images[once], captions[unpaired]
        handicap = (0.0, 0.0) if transport_tau is None else handicaps(*sides, transport_tau)
        image_for[unpaired] = once[nearest(sides[1], sides[0], handicap[0])]
        caption_for[unpaired] = unpaired[nearest(*sides, handicap[1])][of]
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
