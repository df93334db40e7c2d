"""The words of a run: its vocabulary, the tokens of its captions, and initial word vectors."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from l2rm_jax.data.pairs import Pairs, Tokens
from l2rm_jax.data.text import SentenceSplitter, Vocabulary, load_sentence_splitter, tokenize
from l2rm_jax.errors import ConfigError, DataError, Problems, first_line
from l2rm_jax.jobs.regular_files import TEXT, has_file, read_regular
from l2rm_jax.pretrained.tokenizer import Pieces

VOCABULARY_FILE = "vocabulary.json"
WORD_VECTORS_FILE = "word_vectors.npy"

WordVectors = Float32[np.ndarray, "words dimensions"]  # rows of words without a vector are NaN


def word_tools(
    problems: Problems,
    data_config: Any,
    pieces: Pieces | None,
    in_words: bool,
    workdir: Path | None,
) -> tuple[Vocabulary | Pieces | None, SentenceSplitter | None]:
    """Return the vocabulary, None if it must still be built, and the sentence splitter, if any."""
    if pieces is not None:
        return pieces, None
    vocabulary = problems.attempt(
        _known_vocabulary if in_words else _empty_vocabulary,
        data_config.vocabulary,
        workdir=workdir,
    )
    needs_splitter = data_config.split_sentences and in_words
    return vocabulary, problems.attempt(load_sentence_splitter) if needs_splitter else None


def _known_vocabulary(file: str, workdir: Path | None) -> Vocabulary | None:
    """Read the vocabulary of the work directory or of `file`; None if one must be built."""
    own_file = None if workdir is None else workdir / VOCABULARY_FILE
    own = Vocabulary.read(own_file) if own_file and own_file.exists() else None
    given = Vocabulary.read(file) if file else None
    if own and given and own != given:
        raise DataError(
            f"{own_file}: found this run's vocabulary of {len(own)} words, expected the vocabulary "
            f"in {file} ({len(given)} words); use another workdir"
        )
    return own or given


def _empty_vocabulary(file: str, workdir: Path | None) -> Vocabulary:
    """Return an empty vocabulary for captions that are vectors; check that none is configured."""
    if file:
        raise ConfigError("data.vocabulary cannot be combined with captions that are vectors")
    if workdir is not None and (workdir / VOCABULARY_FILE).exists():
        raise DataError(
            f"{workdir / VOCABULARY_FILE}: found caption vectors ({{split}}_caps.npy), expected "
            "words, as in this run so far; use another workdir or move the vectors away"
        )
    return Vocabulary({})


def split_tokens(
    splits: list[Pairs],
    vocabulary: Vocabulary | Pieces | None,
    split_sentences: SentenceSplitter | None,
    min_count: int,
) -> tuple[list[Tokens], Vocabulary | Pieces]:
    """Return the tokens of each split, and the vocabulary; None is built from the first two."""
    if isinstance(vocabulary, Pieces):
        return [
            vocabulary.encode_all(split.texts, f"captions of {split.split}") for split in splits
        ], vocabulary
    if vocabulary is not None and not len(vocabulary):
        return [split.captions for split in splits], vocabulary
    # Tokenizing is slow on large data, so it is done once, after all other checks.
    words = [[tokenize(caption, split_sentences) for caption in each.texts] for each in splits]
    vocabulary = vocabulary or Vocabulary.from_words(chain(*words[:2]), min_count)
    return [[vocabulary.encode_words(line) for line in lines] for lines in words], vocabulary


def run_word_vectors(path: str, vocabulary: Vocabulary, workdir: Path | None) -> WordVectors | None:
    """Read the word vectors from the run's copy or else from the file; None without a file.

    Raises:
      ConfigError: the captions are vectors.
      DataError: as `read_word_vectors`.
    """
    if not path:
        return None
    if not len(vocabulary):
        raise ConfigError("data.word_vectors cannot be combined with captions that are vectors")
    if workdir is not None and (workdir / WORD_VECTORS_FILE).exists():
        return np.load(workdir / WORD_VECTORS_FILE, allow_pickle=False)
    return read_word_vectors(path, vocabulary)


def check_no_words(config: Any, workdir: Path | None) -> None:
    """Check that no vocabulary is configured, as a pretrained tokenizer reads the captions."""
    unset = {"vocabulary": "", "min_count": 4, "split_sentences": False}
    wrong = [
        f"data.{name}: found {config[name]!r}, expected {value!r}, because a pretrained text "
        "encoder has its own tokenizer"
        for name, value in unset.items()
        if config[name] != value
    ]
    if wrong:
        raise ConfigError(*wrong)
    if workdir is not None and (workdir / VOCABULARY_FILE).exists():
        raise DataError(
            f"{workdir / VOCABULARY_FILE}: found a vocabulary, expected none with a pretrained "
            "text encoder; use another workdir"
        )


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
