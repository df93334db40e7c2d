"""Hashes that identify images, captions and pairs by their contents, whatever their rows."""

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from l2rm_jax.data.content_hashes import hash_keys, hash_rows
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.jobs import LOCAL, Executor
from l2rm_jax.linear.rows import BLOCK, Rows

_ROWS = 16 * BLOCK  # rows per part


class Keys(NamedTuple):
    """Hashes of contents: equal for equal contents, whatever their rows.

    Attributes:
      image: hash of the vector of each image.
      caption: hash of the vector of each caption.
      said: hash of the text of each caption, or of its vector without texts.
    """

    image: UInt64[np.ndarray, " images"]
    caption: UInt64[np.ndarray, " pairs"]
    said: UInt64[np.ndarray, " pairs"]

    def of_pairs(self, image_of: Int[np.ndarray, " pairs"]) -> UInt64[np.ndarray, " pairs"]:
        """Hash each pair: its image and its caption."""
        with np.errstate(over="ignore"):
            return hash_keys(self.image[image_of], 2) + self.caption

    def of_all(self, image_of: Int[np.ndarray, " pairs"]) -> str:
        """Hash all pairs, whatever their order; in hexadecimal."""
        return hash_all(self.of_pairs(image_of))

    def sort(
        self, pairs: Int[np.ndarray, " n"], image_of: Int[np.ndarray, " pairs"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"], Int[np.ndarray, " n"]]:
        """Sort some pairs by the hashes of image and caption, whatever their rows.

        Returns:
          Rows of the pairs, rows of their images by hash, and the place among these of each pair's
          image.
        """
        images, position = np.unique(image_of[pairs], return_inverse=True)
        order = np.argsort(self.image[images], kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        by_key = np.lexsort((self.caption[pairs], place[position]))
        return pairs[by_key], images[order], place[position][by_key]

    def take(self, pairs: Int[np.ndarray, " n"]) -> "Keys":
        """Return the keys of some pairs and of all images."""
        return Keys(self.image, self.caption[pairs], self.said[pairs])


def hash_all(keys: UInt64[np.ndarray, " pairs"]) -> str:
    """Hash the hashes of all pairs, whatever their order; in hexadecimal."""
    with np.errstate(over="ignore"):
        return f"{int(keys.sum(dtype=np.uint64)):016x}"


def content_keys(pairs: Pairs, executor: Executor = LOCAL) -> Keys:
    """Return the hashes of all contents."""
    captions = said = vector_keys(pairs.captions, executor)
    if pairs.texts is not None:
        texts = np.array(pairs.texts, object)  # a list would be a tree with a leaf per text
        said = map_rows(_part_of_texts, len(texts), executor, executor.put(texts))
    return Keys(vector_keys(pairs.images, executor), captions, said)


def vector_keys(vectors: Rows, executor: Executor = LOCAL) -> UInt64[np.ndarray, " rows"]:
    """Return a hash of each vector."""
    return map_rows(_part_keys, vectors.shape[0], executor, executor.put(vectors))


def map_rows(stage: Callable, total: int, executor: Executor, *shared: Any) -> np.ndarray:
    """Concatenate the results of a stage, called with `shared` and the bounds of each part."""
    starts = range(0, total, _ROWS)
    calls = ((*shared, start, min(start + _ROWS, total)) for start in starts)
    return np.concatenate([*executor.map(stage, calls)])


def _part_keys(vectors: Rows, start: int, stop: int) -> UInt64[np.ndarray, " rows"]:
    blocks = np.array_split(np.arange(start, stop), -(-(stop - start) // BLOCK))
    keys = [hash_rows(vectors[rows]) for rows in blocks]
    return np.concatenate(keys)


def _part_of_texts(texts: np.ndarray, start: int, stop: int) -> UInt64[np.ndarray, " texts"]:
    return text_keys(texts[start:stop])


def text_keys(texts: Sequence[str]) -> UInt64[np.ndarray, " texts"]:
    """Return a hash of each text, whatever its case, spaces and Unicode form."""
    normal = (unicodedata.normalize("NFKC", text).casefold() for text in texts)
    return hash_keys([" ".join(text.split()) for text in normal], 0)


def places(keys: np.ndarray, wanted: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return the place of each wanted key among different keys, or -1."""
    order = np.argsort(keys)
    at = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
    return np.where(keys[at] == wanted, at, -1)


def first_of_equals(keys: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return the smallest place with the same key."""
    _, first, position = np.unique(keys, return_index=True, return_inverse=True)
    return first[position]
