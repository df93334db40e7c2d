"""Tell images apart that share a name, by their vectors."""

import logging

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.errors import DataError
from l2rm_jax.linear.rows import Rows

_log = logging.getLogger(__name__)

_BLOCK = 4096  # rows read at once
_NUMBERS = 8  # numbers that each vector is reduced to for the comparison
# An encoder gives one picture slightly different vectors in different batches. Vectors of the same
# name are one image up to this distance, relative to their length (a cosine of 0.99995).
_TOLERANCE = 0.01
_MOST = 2000  # different images of one name; a column with more is no name of images


def number_variants(name: Int[np.ndarray, " rows"], vectors: Rows) -> Int[np.ndarray, " rows"]:
    """Number the different vectors of each name: 0 for the first one and all equal to it.

    Vectors are read in blocks, and only those of names that repeat.

    Args:
      name: number of the name of each row, from 0; -1: the row needs no comparison.
      vectors: `[rows, d]` vectors of the images.

    Raises:
      DataError: a name has more than 2,000 different vectors.
    """
    variant = np.zeros(len(name), np.int64)
    repeats = np.bincount(name + 1)
    rows = np.flatnonzero((name >= 0) & (repeats[name + 1] > 1))
    rows = rows[np.argsort(name[rows], kind="stable")]
    sketches = _sketches(vectors, rows)
    limits = _TOLERANCE * np.linalg.norm(sketches, axis=1)
    left, number, apart = np.arange(len(rows)), 0, 0  # places of rows without a number yet
    while len(left):  # each turn settles the first row of every name, and those equal to it
        begins = np.diff(name[rows[left]], prepend=-1) > 0
        first = left[begins][np.cumsum(begins) - 1]
        settled = np.abs(sketches[left, 0] - sketches[first, 0]) <= limits[left]
        near = np.flatnonzero(settled)
        distances = np.linalg.norm(sketches[left[near]] - sketches[first[near]], axis=1)
        settled[near] = distances <= limits[left[near]]
        settled |= begins
        variant[rows[left[settled]]] = number
        apart += int(begins.sum()) if number else 0
        left, number = left[~settled], number + 1
        if number == _MOST and len(left):
            raise DataError(
                f"row {rows[left[0]]}: found a name of more than {_MOST:,} images with different "
                "vectors, expected names that tell images apart: image_path, key or url, or "
                "picture_digest in the metadata"
            )
    if apart:
        _log.warning(
            "%s images have the name of an earlier one and another vector; they are kept apart",
            f"{apart:,}",
        )
    return variant


def _sketches(vectors: Rows, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n 8"]:
    """Project vectors on a few random directions, which keeps lengths and distances roughly."""
    directions = np.random.default_rng(0).normal(size=(vectors.shape[1], _NUMBERS))
    sketches, order = np.empty((len(rows), _NUMBERS), np.float32), np.argsort(rows)
    for start in range(0, len(rows), _BLOCK):
        places = order[start : start + _BLOCK]  # in the order of the files
        sketches[places] = vectors[rows[places]] @ directions
    return sketches
