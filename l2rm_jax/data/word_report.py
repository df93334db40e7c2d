"""Describe captions as words: examples, and warnings where most words are lost."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from l2rm_jax.data.contents import count_words
from l2rm_jax.data.text import UNKNOWN, Vocabulary
from l2rm_jax.pretrained.tokenizer import Pieces

EXAMPLES = 3
_MOST = 0.5  # share of unknown words, or of captions of one word, from which on there is a warning
_CHARACTERS = 100  # of an example


class WordReport(NamedTuple):
    """Examples of captions as words, with warnings.

    Attributes:
      examples: the first captions, each with its words.
      warnings: messages of the warnings `unknown_words` and `one_word`, if they apply.
    """

    examples: tuple[tuple[str, str], ...]
    warnings: dict[str, str]


def report_words(
    split: str,
    captions: Sequence[str],
    tokens: Sequence[np.ndarray],
    vocabulary: Vocabulary | Pieces,
) -> WordReport:
    """Describe captions as words.

    Args:
      split: name of the split.
      captions: the captions.
      tokens: word indices of each caption, between `<start>` and `<end>`.
      vocabulary: the vocabulary of the indices. There is no report if captions are vectors, or for
        the pieces of a tokenizer, which knows every word.
    """
    if isinstance(vocabulary, Pieces) or not len(vocabulary) or not len(tokens):
        return WordReport((), {})
    words = {index: word for word, index in vocabulary.word2idx.items()}
    examples = tuple(
        (_shortened(caption), _shortened(" | ".join(words[int(index)] for index in line[1:-1])))
        for caption, line in zip(captions[:EXAMPLES], tokens[:EXAMPLES], strict=True)
    )
    lengths = np.array([len(line) - 2 for line in tokens])
    indices = np.concatenate(tokens)
    unknown = np.count_nonzero(indices == vocabulary.word2idx[UNKNOWN]) / max(lengths.sum(), 1)
    single = (lengths <= 1).mean()
    caption, became = examples[0]
    warnings = {}
    if unknown > _MOST:
        warnings["unknown_words"] = (
            f"{split}: found {unknown:.0%} unknown words, expected at most half: {caption!r} "
            f"became {became}. Words that occur less than data.min_count times are unknown"
        )
    if single > _MOST:
        warnings["one_word"] = (
            f"{split}: found {single:.0%} captions with a single word, such as {caption!r}, "
            "expected sentences with words separated by spaces"
        )
    return WordReport(examples, warnings)


def report_texts(texts: Sequence[str]) -> WordReport:
    """Describe texts that are judged by the counts of their words."""
    vocabulary, tokens = count_words(texts)
    return report_words("captions", texts, tokens, vocabulary)


def _shortened(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."
