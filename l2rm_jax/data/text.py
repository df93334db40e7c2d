"""From a caption to word indices: tokenizer and vocabulary."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int32
from nltk.tokenize import word_tokenize
from nltk.tokenize.punkt import PunktTokenizer

from l2rm_jax.data.files import replace_file
from l2rm_jax.errors import ConfigError, DataError

# Nine captions of ten are plain: there the rules only split at spaces and before the final full
# stop, save for these words (can|not, gon|na), and a short cut is ten times faster.
_PLAIN = re.compile(r"[a-z ]+\.?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPLIT_WORDS = frozenset(["cannot", "gimme", "gonna", "gotta", "lemme", "wanna"])

Splitter = Callable[[str], Iterable[str]]  # a text into its sentences

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"


def tokenize(caption: str, sentences: Splitter | None = None) -> list[str]:
    """Split a caption into lower-case words by the Treebank rules.

    The rules are those of the installed NLTK: 3.10 takes opening single quotes and long dashes off
    a word, 3.9 does not. A full stop leaves the last word of a text only: "sits. then runs." gives
    "sits.", "then", "runs", ".". The authors' code splits a caption into sentences first.

    Args:
      caption: raw text.
      sentences: splits a lower-case text into sentences, as `punkt()` does; None takes a caption
        for one sentence.
    """
    caption = caption.lower()
    if _PLAIN.fullmatch(caption):
        words = caption.removesuffix(".").split() + ["."] * caption.endswith(".")
        if _SPLIT_WORDS.isdisjoint(words):
            return words
    parts = sentences(caption) if sentences else [caption]
    return [word for part in parts for word in word_tokenize(part, preserve_line=True)]


def punkt() -> Splitter:
    """NLTK's sentence splitter for English.

    Raises:
      ConfigError: its model is not installed.
    """
    try:
        return PunktTokenizer("english").tokenize
    except LookupError:
        raise ConfigError(
            "data.split_sentences: NLTK's punkt model is not installed; get it with "
            "`python -m nltk.downloader punkt_tab`, or set the field to False"
        ) from None


@dataclass(frozen=True)
class Vocabulary:
    """Words and their indices, 0 to n - 1; `<pad>` is 0, so that padding is zeros.

    Attributes:
      word2idx: index of each word, the four special words included.
    """

    word2idx: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.word2idx)

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 4) -> "Vocabulary":
        """Take every word that occurs at least `min_count` times in the captions."""
        return cls.from_words(map(tokenize, captions), min_count)

    @classmethod
    def from_words(cls, tokenized: Iterable[Sequence[str]], min_count: int = 4) -> "Vocabulary":
        """`build` for captions that are tokenized already."""
        counts = Counter(word for words in tokenized for word in words)
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls({word: i for i, word in enumerate([PAD, START, END, UNKNOWN, *kept])})

    @classmethod
    def read(cls, path: str | Path) -> "Vocabulary":
        """Read a json file with the keys `word2idx`, `idx2word` and `idx`.

        Raises:
          DataError: the file is missing or is no such json, indices have gaps or contradict each
              other, or a special word is missing.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"{path}: no such vocabulary file") from None
        except (ValueError, OSError, RecursionError) as error:
            raise DataError(f"{path}: not a readable json file ({error})") from error
        if problems := [f"{path}: {problem}" for problem in _vocabulary_problems(content)]:
            raise DataError(*problems)
        return cls(content["word2idx"])

    def write(self, path: str | Path) -> None:
        """Write the json form that `read` reads."""
        content = {
            "word2idx": dict(self.word2idx),
            "idx2word": {str(index): word for word, index in self.word2idx.items()},
            "idx": len(self),
        }
        replace_file(Path(path), json.dumps(content, ensure_ascii=False).encode())

    def encode(
        self, caption: str, sentences: Splitter | None = None
    ) -> Int32[np.ndarray, " words"]:
        """Indices of a caption's words between those of `<start>` and `<end>`."""
        return self.encode_words(tokenize(caption, sentences))

    def encode_words(self, words: Sequence[str]) -> Int32[np.ndarray, " words"]:
        """`encode` for a caption that is tokenized already."""
        index, unknown = self.word2idx, self.word2idx[UNKNOWN]
        inner = [index.get(word, unknown) for word in words]
        return np.array([index[START], *inner, index[END]], np.int32)


def _vocabulary_problems(content: object) -> Iterator[str]:
    keys = ("word2idx", "idx2word", "idx")
    if not isinstance(content, dict) or any(key not in content for key in keys):
        found = sorted(content) if isinstance(content, dict) else type(content).__name__
        yield f"found {found}, expected the keys {', '.join(keys)}"
        return
    word2idx, idx2word = content["word2idx"], content["idx2word"]
    if not isinstance(word2idx, dict) or not isinstance(idx2word, dict):
        yield "word2idx and idx2word must be json objects"
        return
    for word in (PAD, START, END, UNKNOWN):
        if word not in word2idx:
            yield f"word2idx has no {word}; expected all four special words"
    if any(type(index) is not int for index in word2idx.values()):
        yield "word2idx must map words to integers"
        return
    if broken := [word for word in word2idx if _SURROGATE.search(word)]:
        yield f"word2idx has {broken[0]!a}, half a character"
    if word2idx.get(PAD, 0) != 0:
        yield f"{PAD} has index {word2idx[PAD]}, expected 0"
    missing = set(range(len(word2idx))) - set(word2idx.values())
    if missing:
        yield (
            f"word2idx has {len(word2idx)} words but index {min(missing)} belongs to none; "
            f"expected each of 0 to {len(word2idx) - 1} once"
        )
    if content["idx"] != len(word2idx) or len(idx2word) != len(word2idx):
        yield (
            f"idx is {content['idx']} and idx2word has {len(idx2word)} entries, expected "
            f"{len(word2idx)} as in word2idx"
        )
    for word, index in word2idx.items():
        if idx2word.get(str(index)) != word:
            yield f"idx2word has {idx2word.get(str(index))!r} at {index}, expected {word!r}"
