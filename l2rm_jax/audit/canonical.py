"""Pairs in an order that their contents give, so that the order of the input changes nothing."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt64

from l2rm_jax.crossfit.rows import Rows


class Order(NamedTuple):
    """Images and captions in order of the hashes of their vectors.

    Attributes:
      images: [images] row in the input of each image.
      pairs: [pairs] row in the input of each pair.
      image_of: [pairs] place of the image of each pair, in that order.
      total: number of pairs of the input, with those that are left out.
    """

    images: Int[np.ndarray, " images"]
    pairs: Int[np.ndarray, " pairs"]
    image_of: Int[np.ndarray, " pairs"]
    total: int

    def to_input(
        self, values: Shaped[np.ndarray, "pairs ..."], fill: float
    ) -> Shaped[np.ndarray, "total ..."]:
        """Return values of pairs in the order of the input; `fill` for those left out."""
        placed = np.full((self.total, *values.shape[1:]), fill, values.dtype)
        placed[self.pairs] = values
        return placed


def canonical_order(
    image_keys: UInt64[np.ndarray, " images"],
    caption_keys: UInt64[np.ndarray, " pairs"],
    pair_image: Int[np.ndarray, " pairs"],
    left_out: Bool[np.ndarray, " images"],
) -> Order:
    """Order images by key; and pairs by image, then by key of the caption.

    Images that are `left_out`, and their pairs, are not in it.
    """
    images = np.argsort(image_keys, kind="stable")
    images = images[~left_out[images]]
    place = np.zeros(len(image_keys), np.int64)
    place[images] = np.arange(len(images))
    pairs = np.lexsort((caption_keys, place[pair_image]))
    pairs = pairs[~left_out[pair_image[pairs]]]
    return Order(images, pairs, place[pair_image[pairs]], len(pair_image))


class Reordered:
    """Rows of vectors in another order; read when they are asked for."""

    def __init__(self, vectors: Rows, order: Int[np.ndarray, " rows"]):
        self._vectors, self._order = vectors, order
        self.shape = len(order), vectors.shape[1]

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dimensions"]:
        return self._vectors[self._order[rows]]
