"""The words of a run: its vocabulary, the tokens of its captions, and initial word vectors."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.data.pairs import Pairs, Tokens
from l2rm_jax.data.text import SentenceSplitter, Vocabulary, load_sentence_splitter, tokenize
from l2rm_jax.data.word_vectors import read_word_vectors
from l2rm_jax.errors import ConfigError, DataError, Problems
from l2rm_jax.pretrained.tokenizer import Pieces

VOCABULARY_FILE = "vocabulary.json"
WORD_VECTORS_FILE = "word_vectors.npy"


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


def run_word_vectors(path: str, vocabulary: Vocabulary, workdir: Path | None) -> np.ndarray | None:
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
