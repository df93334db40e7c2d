"""Check arrays and texts at the edge, turn them into vectors, and hash the contents of pairs."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int32

from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.frame_columns import as_numpy, as_vectors
from l2rm_jax.data.npy_files import still_whole
from l2rm_jax.data.text import Vocabulary, tokenize
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.jobs import LOCAL, Executor
from l2rm_jax.linear.word_features import WordRows, fit_words, word_rows

PART = 65_536  # rows read at once
_SMALLEST, _LARGEST = 1e-6, 1e6  # vectors are rescaled if their largest value is outside


def are_texts(captions: Any) -> bool:
    """Return whether captions are texts (some may be missing) rather than vectors."""
    values = as_numpy(captions) if hasattr(captions, "__array__") else captions
    if isinstance(values, np.ndarray) and (values.ndim != 1 or values.dtype.kind in "biufc"):
        return False
    return any(isinstance(each, str) for each in values)


def checked_texts(name: str, texts: Iterable[Any]) -> list[str]:
    """Convert texts, also from NumPy or pandas, to a list of Python strings.

    Raises:
      DataError: it is no list, or entries are not text; lists all of them.
    """
    values = as_list(name, texts)
    if wrong := [
        f"{name}: entry {at} is {each!r}, expected text"
        for at, each in enumerate(values)
        if not isinstance(each, str)
    ]:
        raise DataError(*wrong)
    return list(map(str, values))


def as_list(name: str, values: Any) -> list[Any]:
    """Return the entries of a list, a generator or a column.

    Raises:
      DataError: it is a single text, a number, a mapping or None.
    """
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise DataError(f"{name}: found {type(values).__name__}, expected a list or an array")
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)  # of pyarrow


def checked_vectors(name: str, values: Any) -> np.ndarray:
    """Check an array of rank 2, or a column of vectors, by reading it once; return the array.

    bfloat16, which NumPy does not know, becomes float32. Only the direction of vectors matters, so
    vectors whose squares would overflow or underflow in float32 are rescaled.

    Raises:
      DataError: a wrong rank or dtype, an empty array, or one message per row that is not finite.
    """
    try:
        array = as_vectors(values)
        found = f"{array.dtype} {list(array.shape)}"
    except ValueError:
        array, found = np.zeros(0), "vectors of different lengths"
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise DataError(f"{name}: found {found}, expected floats [{name}, dimensions] or texts")
    largest = max(float(np.abs(block).max()) for block in finite_blocks(name, array))
    if largest and not _SMALLEST < largest < _LARGEST:
        array = (array / array.dtype.type(largest)).astype(np.float32)
    return array


def finite_blocks(
    name: str, array: Float[np.ndarray, "rows d"]
) -> Iterator[Float[np.ndarray, "block d"]]:
    """Iterate over an array block by block, and check that all its numbers are finite.

    Raises:
      DataError: after the last block; lists each row that is not finite.
    """
    bad: list[int] = []
    for start in range(0, len(array), PART):
        block = still_whole(array)[start : start + PART]
        bad += (start + np.flatnonzero(~np.isfinite(block).all(axis=1))).tolist()
        yield block
    if bad:
        problem = "found NaN or infinity, expected finite numbers"
        raise DataError(*(f"{name}: row {row}: {problem}" for row in bad))


def checked_rows(
    images: int, captions: int, image_of: np.ndarray | None
) -> Int[np.ndarray, " pairs"]:
    """Return the image row of each caption.

    Args:
      images: number of images.
      captions: number of captions.
      image_of: the rows; None: each image has the same number of adjacent captions.

    Raises:
      DataError: not exactly one row of `images` per caption; lists every row out of range.
    """
    if image_of is None:
        if captions % images:
            raise DataError(
                f"captions: found {captions} for {images} images, expected a multiple of the "
                "number of images, or image_of"
            )
        return np.arange(captions) // (captions // images)
    rows = np.asarray(image_of)
    if rows.shape != (captions,) or rows.dtype.kind not in "iu":
        raise DataError(
            f"image_of: found {rows.dtype} {list(rows.shape)}, expected integers [{captions}], "
            "one per caption"
        )
    outside = np.flatnonzero((rows < 0) | (rows >= images))
    if len(outside):
        expected = f"expected 0 to {images - 1}, a row of images"
        raise DataError(*(f"image_of: entry {at} is {rows[at]}, {expected}" for at in outside))
    return rows.astype(np.int64)


def count_words(texts: Sequence[str]) -> tuple[Vocabulary, list[Int32[np.ndarray, " words"]]]:
    """Return the vocabulary of texts, and the numbers of the words of each."""
    words = [tokenize(text) for text in texts]
    vocabulary = Vocabulary.from_words(words)
    return vocabulary, [vocabulary.encode_words(line) for line in words]


def rows_of_texts(texts: Sequence[str], executor: Executor = LOCAL) -> WordRows:
    """Return weighted counts of the words of texts; the executor counts and weights them."""

    def counted() -> tuple[np.ndarray, ...]:
        tokens = count_words(texts)[1]
        return word_rows(tokens, fit_words(tokens)).arrays

    return WordRows(*executor.once(counted, like=(0, 0, 0, 0)))


def hash_features(digest: "hashlib.blake2b", features: RegionFeatures | Pixels) -> None:
    """Hash all features; raise an error that lists every row that is not finite."""
    problems = Problems()
    digest.update(str(features.shape).encode())
    for block in features.blocks():
        rows = problems.attempt(features.rows, block)
        if rows is not None:
            digest.update(np.ascontiguousarray(rows))
    problems.raise_all()
    hash_array(digest, features.region_counts(np.arange(len(features))))


def hash_array(digest: "hashlib.blake2b", array: np.ndarray) -> None:
    """Hash an array block by block."""
    digest.update(f"{array.dtype.str} {array.shape}".encode())
    for start in range(0, len(array), PART):
        digest.update(np.ascontiguousarray(still_whole(array)[start : start + PART]))


def hash_names(
    digest: "hashlib.blake2b", image_of: np.ndarray, *names: Iterable[str] | None
) -> None:
    """Hash the image of each caption, the captions, and the names of images and captions."""
    hash_array(digest, image_of.astype(np.int64))
    for texts in names:
        digest.update(b"\x01" if texts is None else b"\x02")
        for text in texts or ():
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)


def check_count(name: str, values: Sequence | None, count: int, of: str) -> None:
    """Check that there is one value per row.

    Raises:
      DataError: another number of values.
    """
    if values is not None and len(values) != count:
        raise DataError(f"{name}: found {len(values)}, expected {count}, one for each of the {of}")
