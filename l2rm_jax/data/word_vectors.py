"""Initial word embeddings of a run from word vectors, such as GloVe's."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import DataError, first_line
from l2rm_jax.jobs.regular_files import TEXT, has_file, read_regular

WordVectors = Float32[np.ndarray, "words dimensions"]  # rows of words without a vector are NaN


def read_word_vectors(path: str | Path, vocabulary: Vocabulary) -> WordVectors:
    """Read the vectors of the words of a vocabulary.

    Args:
      path: text in the format of GloVe, a word and its numbers per line; or an array FILE.npy
        `[words, dimensions]` with its words, one per line, in FILE.txt.
      vocabulary: the words; the first line of a word counts.

    Returns:
      The vectors in the order of the vocabulary, NaN for words without a vector.

    Raises:
      DataError: a file is missing or invalid; or no word has a vector.
    """
    path = Path(path)
    if not has_file(path):
        raise DataError(f"{path}: no such file, expected word vectors")
    pairs = _from_array(path) if path.suffix == ".npy" else _from_text(path, vocabulary.word2idx)
    vectors: np.ndarray | None = None
    for word, values in pairs:
        row = vocabulary.word2idx.get(word)
        if vectors is None:
            vectors = np.full((len(vocabulary), len(values)), np.nan, np.float32)
        if row is not None and np.isnan(vectors[row]).any():
            vectors[row] = values
    if vectors is None or np.isnan(vectors).all():
        raise DataError(
            f"{path}: found none of the {len(vocabulary)} words of the vocabulary, expected some"
        )
    return vectors


def describe_unknown(vectors: WordVectors) -> str:
    """Describe in a sentence the number of words without a vector."""
    unknown = np.count_nonzero(np.isnan(vectors[:, 0]))
    return f"{unknown:,} of {len(vectors):,} words have no vector and are initialised randomly"


def _from_array(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    names = path.with_suffix(".txt")
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
        words = read_regular(names, TEXT).decode().split("\n")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({first_line(error)}), expected an array and its words in "
            f"{names.name}"
        ) from error
    words = words[:-1] if words[-1] == "" else words
    if array.ndim != 2 or array.dtype.kind != "f" or len(array) != len(words):
        raise DataError(
            f"{path}: found {array.dtype} {list(array.shape)} and {len(words)} words in "
            f"{names.name}, expected numbers [words, dimensions] for these words"
        )
    for row, word in enumerate(words):
        yield word, _finite(np.asarray(array[row], np.float32), f"{path}: row {row}")


def _from_text(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the wanted words; skip a first line of two integers, as word2vec writes it."""
    size = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            parts = line.rstrip().split(" ")
            if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                continue
            size = size or len(parts) - 1
            # A word may contain spaces.
            word, values = " ".join(parts[:-size]), parts[-size:]
            if not size or not word:
                raise DataError(
                    f"{path}:{number}: found {len(parts)} parts, expected a word and "
                    f"{size or 'its'} numbers"
                )
            if word in wanted:
                yield word, _parsed(values, f"{path}:{number}")


def _parsed(values: list[str], where: str) -> np.ndarray:
    try:
        return _finite(np.array(values, np.float32), where)
    except ValueError as error:
        raise DataError(f"{where}: {first_line(error)}, expected numbers after a word") from None


def _finite(values: np.ndarray, where: str) -> np.ndarray:
    if not np.isfinite(values).all():
        raise DataError(f"{where}: found a value that is not finite, expected numbers")
    return values
