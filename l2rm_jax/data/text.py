"""Turn captions into word indices: the tokenizer and the vocabulary."""

import functools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from l2rm_jax.data.segmentation import is_unspaced, segment
from l2rm_jax.errors import ConfigError, DataError, first_line
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import JSON, read_regular

SentenceSplitter = Callable[[str], Iterable[str]]  # maps a text to its sentences

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"

# 98% of captions contain only these characters, and no long dash. The Treebank rules then split at
# spaces, before commas and the final full stop only, except inside a few words (can|not, gon|na),
# so `tokenize` takes a shortcut that is ten times faster.
_PLAIN = re.compile(r"(?:[a-z0-9 -]++|, )++\.?")
_SPLIT_INSIDE = re.compile(r"--|\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b")
# A full stop between two sentences of a caption, with closing quotes and white space.
_CLOSING = r"""\"')\]}\u201d\u2019\u00bb"""
_SENTENCE_END = re.compile(
    rf"(?<!\S)(?P<word>\S+)\.[{_CLOSING}]*\s[{_CLOSING}\s]*(?=[^{_CLOSING}\s])"
)
# Words whose full stop ends no sentence. Letters and words with inner full stops (`u.s.`) are too.
_ABBREVIATIONS = frozenset((
    "approx", "ave", "blvd", "capt", "cf", "co", "col", "corp", "dept", "dr", "etc", "ft",
    "gen", "gov", "inc", "jr", "lt", "ltd", "messrs", "mr", "mrs", "ms", "mt", "prof", "rd",
    "rev", "sen", "sgt", "sq", "sr", "st", "vol", "vs",
))  # fmt: skip
_OPENING = "\"'([{\u201c\u2018\u00ab"
_SURROGATE = re.compile("[\ud800-\udfff]")


def tokenize(caption: str, split_sentences: SentenceSplitter | None = None) -> list[str]:
    """Split a caption into lower-case words by the Treebank rules, sentence by sentence.

    The installed NLTK defines the rules: 3.10 separates opening single quotes and long dashes from
    a word, 3.9 does not. They make the last full stop of a sentence a word, so the caption is first
    split into sentences, as in the authors' code. A caption that is mostly in a script without
    spaces, which these rules would leave as one word, is split by `segmentation.segment`.

    Args:
      caption: raw text.
      split_sentences: splits a lower-case text into sentences (see `load_sentence_splitter`); None
        takes `split_at_full_stops`.
    """
    caption = caption.lower()
    if (words := _plain_words(caption)) is not None:
        return words
    if is_unspaced(caption):
        return segment(caption)
    sentences = (split_sentences or split_at_full_stops)(caption)
    return [word for sentence in sentences for word in _words_of_sentence(sentence)]


def split_at_full_stops(text: str) -> list[str]:
    """Split a lower-case text into sentences, after each full stop that ends a word.

    Full stops of abbreviations (`mr.`, `u.s.`, `john f.`) and ellipses end no sentence.
    """
    starts = [0]
    for match in _SENTENCE_END.finditer(text):
        word = match["word"].lstrip(_OPENING)
        is_initial = len(word) == 1 and word.isalpha()
        if word and not is_initial and "." not in word and word not in _ABBREVIATIONS:
            starts.append(match.end())
    return [text[start:end] for start, end in pairwise([*starts, len(text)])]


def _plain_words(text: str) -> list[str] | None:
    """Words of a text for which the short cut holds; None for others."""
    if not _PLAIN.fullmatch(text) or _SPLIT_INSIDE.search(text):
        return None
    return text.replace(",", " ,").removesuffix(".").split() + ["."] * text.endswith(".")


def _words_of_sentence(text: str) -> list[str]:
    if (words := _plain_words(text.rstrip())) is not None:
        return words
    return _nltk().word_tokenize(text, preserve_line=True)


@functools.cache
def _nltk() -> Any:
    """Import NLTK's tokenizers, and SciPy's statistics with them, which takes a second.

    The import fails without a home directory, as in a container whose user has no entry.
    """
    has_home = os.path.expanduser("~") != "~"
    if not has_home:
        os.environ["HOME"] = tempfile.gettempdir()
    try:
        from nltk import tokenize as tokenizers
    finally:
        if not has_home:
            del os.environ["HOME"]
    return tokenizers


def load_sentence_splitter() -> SentenceSplitter:
    """Load NLTK's sentence splitter for English (the punkt model).

    Raises:
      ConfigError: the model is not installed.
    """
    try:
        return _nltk().punkt.PunktTokenizer("english").tokenize
    except LookupError:
        raise ConfigError(
            "data.split_sentences requires NLTK's punkt model, which is not installed",
            hint="python -m nltk.downloader punkt_tab",
        ) from None


@dataclass(frozen=True)
class Vocabulary:
    """Words and their indices, 0 to n - 1. `<pad>` has index 0, so padding is zeros.

    Attributes:
      word2idx: index of each word, including the four special words.
    """

    word2idx: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.word2idx)

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 4) -> "Vocabulary":
        """Build a vocabulary of all words that occur at least `min_count` times in the captions."""
        return cls.from_words(map(tokenize, captions), min_count)

    @classmethod
    def from_words(cls, tokenized: Iterable[Sequence[str]], min_count: int = 4) -> "Vocabulary":
        """Like `build`, for captions that are already tokenized."""
        counts = Counter(word for words in tokenized for word in words)
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls({word: i for i, word in enumerate([PAD, START, END, UNKNOWN, *kept])})

    @classmethod
    def read(cls, path: str | Path) -> "Vocabulary":
        """Read a json file with the keys `word2idx`, `idx2word` and `idx` (the format of SCAN).

        Raises:
          DataError: the file is missing, is not json with these keys, lacks a special word, or has
            indices with gaps or contradictions; lists every problem.
        """
        path = Path(path)
        try:
            content = json.loads(read_regular(path, JSON))
        except DataError as error:
            found = str(error).removesuffix(", expected a file")
            raise DataError(f"{found}, expected a vocabulary") from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: cannot be read ({first_line(error)}), expected a JSON file with the keys "
                "word2idx, idx2word and idx"
            ) from error
        if problems := [f"{path}: {problem}" for problem in _vocabulary_problems(content)]:
            raise DataError(*problems)
        return cls(content["word2idx"])

    def write(self, path: str | Path) -> None:
        """Write the vocabulary as the json file that `read` reads."""
        content = {
            "word2idx": dict(self.word2idx),
            "idx2word": {str(index): word for word, index in self.word2idx.items()},
            "idx": len(self),
        }
        replace_file(Path(path), json.dumps(content, ensure_ascii=False).encode())

    def encode(
        self, caption: str, split_sentences: SentenceSplitter | None = None
    ) -> Int32[np.ndarray, " words"]:
        """Tokenize a caption and return its word indices, with `<start>` and `<end>` around them.

        Words outside the vocabulary get the index of `<unk>`.
        """
        return self.encode_words(tokenize(caption, split_sentences))

    def encode_words(self, words: Sequence[str]) -> Int32[np.ndarray, " words"]:
        """Like `encode`, for a caption that is already tokenized."""
        index, unknown = self.word2idx, self.word2idx[UNKNOWN]
        inner = [index.get(word, unknown) for word in words]
        return np.array([index[START], *inner, index[END]], np.int32)


def _vocabulary_problems(content: object) -> Iterator[str]:
    keys = ("word2idx", "idx2word", "idx")
    if not isinstance(content, dict) or any(key not in content for key in keys):
        actual = sorted(content) if isinstance(content, dict) else type(content).__name__
        yield f"found {actual}, expected the keys {', '.join(keys)}"
        return
    word2idx, idx2word = content["word2idx"], content["idx2word"]
    if not isinstance(word2idx, dict) or not isinstance(idx2word, dict):
        yield "word2idx, idx2word: expected JSON objects"
        return
    for word in (PAD, START, END, UNKNOWN):
        if word not in word2idx:
            yield f"word2idx: found no {word}, expected all four special words"
    if any(type(index) is not int for index in word2idx.values()):
        yield "word2idx: expected a map of words to integers"
        return
    if broken := [word for word in word2idx if _SURROGATE.search(word)]:
        yield f"word2idx: found the lone surrogate {broken[0]!a}, expected whole characters"
    if word2idx.get(PAD, 0) != 0:
        yield f"word2idx, {PAD}: found {word2idx[PAD]}, expected 0"
    missing = set(range(len(word2idx))) - set(word2idx.values())
    if missing:
        yield (
            f"word2idx: found {len(word2idx)} words without the index {min(missing)}, expected "
            f"each of 0 to {len(word2idx) - 1} once"
        )
    if content["idx"] != len(word2idx) or len(idx2word) != len(word2idx):
        yield (
            f"idx, idx2word: found {content['idx']} and {len(idx2word)} entries, expected "
            f"{len(word2idx)}, as in word2idx"
        )
    for word, index in word2idx.items():
        if idx2word.get(str(index)) != word:
            yield f"idx2word: {index}: found {idx2word.get(str(index))!r}, expected {word!r}"
