"""`Batch`: the arrays that `data` builds, devices share, and `models` encode."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, Int32, UInt8

Array = np.ndarray | jax.Array
Images = Float32[Array, "Q R Dv"] | UInt8[Array, "Q S S 3"]
Tokens = Int32[Array, "B L"] | Float32[Array, "B L Dt"]


class Batch(NamedTuple):
    """B pairs, with captions padded to a common number of words; or only one side of them.

    There are Q = B images, unless a queue appends older images to the images of the B pairs (see
    `data.TrainStream`). The fields of a side that is left out are None, as are the images where
    `vectors` replaces them.
    """

    images: Images | None = None  # features of the stored images, or their pixels
    regions: Int32[Array, " Q"] | None = None  # of each image, 1 to R; rows after them are zeros
    tokens: Tokens | None = None  # indices of words or pieces, or vectors; zeros after the end
    lengths: Int32[Array, " B"] | None = None  # number of tokens of each caption, 1 to L
    pair_index: Int32[Array, " B"] | None = None  # row in the data set; -1: not a stored pair
    image_index: Int32[Array, " Q"] | None = None  # rows of the stored images
    # The head's vectors of the images, encoded before: `[Q, n, D]` for a model of n networks.
    vectors: Float32[Array, "Q *n D"] | None = None
