"""Pseudo-pairs of RCSL: cross-modal nearest neighbours, optionally balanced by transport."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

CHUNK = 512  # queries compared with all keys at once; bounds the memory for similarities
SEARCHES = ("nearest", "transport")
ITERATIONS = 20  # Sinkhorn iterations; each makes two passes over all similarities


@partial(jax.jit, static_argnames="chunk")
def nearest_keys(
    queries: Float[np.ndarray, "n D"],
    keys: Float[np.ndarray, "m D"],
    penalty: Float[np.ndarray, " m"] | float = 0.0,
    *,
    chunk: int = CHUNK,
) -> Int[jax.Array, " n"]:
    """Row of the key with the largest dot product with each query, minus the key's penalty.

    Ties go to the first key.
    """
    return jax.lax.map(lambda query: jnp.argmax(keys @ query - penalty), queries, batch_size=chunk)


@partial(jax.jit, static_argnames="chunk")
def hub_penalties(
    queries: Float[np.ndarray, "n D"],
    keys: Float[np.ndarray, "m D"],
    tau: float,
    *,
    chunk: int = CHUNK,
) -> tuple[Float[jax.Array, " n"], Float[jax.Array, " m"]]:
    """Penalties that keep a hub, a vector close to many others, from being nearest to all of them.

    They are the dual potentials, times -tau, of entropic transport between all queries and all
    keys, with equal weights on each side and the negative dot product as cost. With the penalties
    of the keys, `nearest_keys` finds the largest entry of each row of the transport plan; with the
    penalties of the queries, it finds the largest entry of each column. The plan itself is never
    stored: `ot.partial_sinkhorn` would store all of it, this function holds `chunk` rows.

    Args:
      queries: unit vectors.
      keys: unit vectors.
      tau: entropic regularisation, > 0.
      chunk: rows of similarities computed at once.

    Returns:
      The penalties of the queries and of the keys.
    """

    def balance(rows, columns, column_potential):
        def log_sum(row):
            return jax.nn.logsumexp(columns @ row / tau + column_potential)

        return -jnp.log(len(rows)) - jax.lax.map(log_sum, rows, batch_size=chunk)

    def iterate(_, potentials):
        query_potential = balance(queries, keys, potentials[1])
        return query_potential, balance(keys, queries, query_potential)

    start = jnp.zeros(len(queries)), jnp.zeros(len(keys))
    potentials = jax.lax.fori_loop(0, ITERATIONS, iterate, start)
    return tuple(-tau * potential for potential in potentials)


def pseudo_pairs(
    images: Float[np.ndarray, "N D"],
    captions: Float[np.ndarray, "N D"],
    image_of: Int[np.ndarray, " N"],
    unpaired: Int[np.ndarray, " n"],
    transport_tau: float | None = None,
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Find the best image for each unpaired caption and the best caption for each unpaired image.

    Args:
      images: embedding of the image of each pair.
      captions: embedding of the caption of each pair.
      image_of: image of each pair; pairs with the same number have the same image.
      unpaired: rows of the unpaired pairs. Only their images and captions are searched.
      transport_tau: None to take the nearest neighbours. Otherwise the regularisation of a
        transport plan, > 0, whose largest entries are taken: the plan gives each image and each
        caption an equal share.

    Returns:
      `image_for`: for each pair, the row of the pair whose image fits its caption best.
      `caption_for`: the row of the pair whose caption fits its image best (RCSL, before Eq. 7).
      A paired pair has its own row in both.
    """
    image_for, caption_for = np.arange(len(images)), np.arange(len(images))
    if len(unpaired):
        _, first, position = np.unique(image_of[unpaired], return_index=True, return_inverse=True)
        image_rows = unpaired[first]  # one pair for each distinct image
        sides = images[image_rows], captions[unpaired]
        penalties = (0.0, 0.0) if transport_tau is None else hub_penalties(*sides, transport_tau)
        image_for[unpaired] = image_rows[nearest_keys(sides[1], sides[0], penalties[0])]
        caption_for[unpaired] = unpaired[nearest_keys(*sides, penalties[1])][position]
    return image_for, caption_for


def recombine(
    paired: Bool[np.ndarray, " N"], rng: np.random.Generator, share: float = 1.0
) -> Int[np.ndarray, "n 2"]:
    """Give each unpaired image the caption of another unpaired pair, at random.

    Args:
      paired: True for the pairs that are trusted; they keep their captions.
      rng: random generator.
      share: share of the unpaired pairs to use, drawn at random, in [0, 1]. If a single pair is
        drawn, it is left out, because there is no other pair to take a caption from.

    Returns:
      Rows (pair of the image, pair of the caption); the trusted pairs come first.
    """
    trusted, others = np.flatnonzero(paired), rng.permutation(np.flatnonzero(~paired))
    others = others[: round(share * len(others))]
    others = others[: len(others) if len(others) > 1 else 0]
    captions = np.concatenate([trusted, np.roll(others, 1)])
    return np.stack([np.concatenate([trusted, others]), captions], axis=1)
