"""Turn captions into the ids of a pretrained tokenizer (`tokenizer.json` of Hugging Face)."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from l2rm_jax.errors import ConfigError, DataError, Problems, first_line
from l2rm_jax.pretrained.specs import PieceIds, TextBase
from l2rm_jax.pretrained.weight_files import needed_module

TOKENIZER_FILE, MASK = "tokenizer.json", "[MASK]"
_BLOCK = 10_000  # captions that the tokenizer gets at once
# Tokens that each kind of model has around a caption.
_MARKS = {"bert": "[CLS] and [SEP]", "clip": "start and end", "siglip": "the end"}
_MARK_COUNTS = {"bert": 2, "clip": 2, "siglip": 1}

_log = logging.getLogger(__name__)


class PieceCounts(NamedTuple):
    """Counts per caption.

    Attributes:
      read: number of pieces that are read, without the tokens around the caption.
      unknown: number of these pieces that the tokenizer does not know.
      is_cut: whether the caption is too long and loses its end.
    """

    read: Int[np.ndarray, " captions"]
    unknown: Int[np.ndarray, " captions"]
    is_cut: Bool[np.ndarray, " captions"]


class Pieces:
    """A pretrained tokenizer, which splits words into pieces that its model knows.

    A caption that is too long loses its last pieces, but keeps its end token.

    Args:
      file: the tokenizer.json.
      base: the text transformer that reads the ids.
      max_words: maximum number of tokens per caption, including the tokens around it.

    Attributes:
      limit: maximum number of tokens per caption: `max_words`, limited to the model's positions.

    Raises:
      DataError: the file is missing or damaged, does not fit the model, or `tokenizers` is not
        installed; lists every problem of the file.
      ConfigError: `max_words` leaves no room for a caption.
    """

    def __init__(self, file: Path, base: TextBase, max_words: int):
        self._file, self._tokenizer, self._base = file, _read_tokenizer(file), base
        self._marks = _MARK_COUNTS[base.kind]
        self.limit = min(max_words, base.positions)
        problems = Problems()
        problems.attempt(self._check_ids, str(file))
        problems.attempt(self._check_limit, max_words)
        problems.raise_all()
        self._tokenizer.no_padding()  # a file may request both, with its own lengths
        self._tokenizer.enable_truncation(self.limit)
        if base.pads_to_limit:
            self._tokenizer.enable_padding(length=base.positions, pad_id=base.padding)

    def __len__(self) -> int:
        """Number of rows in the model's embedding table; ids are below it."""
        return self._base.pieces

    def encode_all(
        self, captions: Sequence[str], name: str = "captions"
    ) -> list[Int32[np.ndarray, " tokens"]]:
        """Encode captions as ids, with the tokens around them; warn once if some are cut."""
        ids: list[np.ndarray] = []
        cut: list[str] = []
        for start in range(0, len(captions), _BLOCK):
            block = captions[start : start + _BLOCK]
            encoded = self._encode(block, name)
            ids += [np.array(each.ids, np.int32) for each in encoded]
            pairs = zip(block, encoded, strict=True)
            cut += [caption for caption, each in pairs if each.overflowing]
        if cut:
            _log.warning(
                "%s: %d of %d have more than %d tokens and lose the rest; the first is %r",
                name,
                len(cut),
                len(captions),
                self.limit,
                f"{cut[0][:40]}...",
            )
        return ids

    def _encode(self, captions: Sequence[str], name: str) -> list[Any]:
        """Encode captions.

        Raises:
          DataError: the tokenizer fails, for example because one of its tokens has no id.
        """
        try:
            return self._tokenizer.encode_batch(list(captions))
        except Exception as error:  # the library raises plain exceptions
            raise DataError(
                f"{self._file}: cannot encode the {name} ({first_line(error, 200)})"
            ) from error

    def words(self, caption: str) -> tuple[list[str], list[list[int]]]:
        """Words of a caption, each with the columns of its pieces.

        Column 0 is the token or vector of the whole caption; the first piece is column 1. A cut
        caption has fewer words.
        """
        encoded = self._tokenizer.encode(caption)
        pieces = [at for at, word in enumerate(encoded.word_ids) if word is not None]
        columns: dict[tuple[int, int], list[int]] = {}
        for column, at in enumerate(pieces, 1):
            columns.setdefault(encoded.word_ids[at], []).append(column)
        offsets = [encoded.offsets[at] for at in pieces]
        spans = [(offsets[own[0] - 1][0], offsets[own[-1] - 1][1]) for own in columns.values()]
        return [caption[start:end] for start, end in spans], list(columns.values())

    def counts(self, captions: Sequence[str]) -> "PieceCounts":
        """Count the pieces of each caption."""
        token = getattr(self._tokenizer.model, "unk_token", None)
        unknown = None if token is None else self._tokenizer.token_to_id(token)
        encoded = self._encode(captions, "captions")
        pieces = [
            [at for at, word in zip(each.ids, each.word_ids, strict=True) if word is not None]
            for each in encoded
        ]
        return PieceCounts(
            np.array([len(ids) for ids in pieces], np.int64),
            np.array([ids.count(unknown) for ids in pieces], np.int64),
            np.array([bool(each.overflowing) for each in encoded], bool),
        )

    def ids(self) -> PieceIds | None:
        """Ids that the augmentation of captions needs; None without a mask token."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if MASK not in vocabulary:
            return None
        added = self._tokenizer.get_added_tokens_decoder()
        special = sorted(number for number, token in added.items() if token.special)
        # Only models of the kind WordPiece have it.
        prefix = getattr(self._tokenizer.model, "continuing_subword_prefix", None)
        continued = [
            number for piece, number in vocabulary.items() if prefix and piece.startswith(prefix)
        ]
        return PieceIds(
            1 + max(vocabulary.values()), vocabulary[MASK], tuple(special), tuple(sorted(continued))
        )

    def to_bytes(self) -> bytes:
        """Serialise the tokenizer as in its file, to compare tokenizers."""
        return self._tokenizer.to_str().encode()

    def _check_ids(self, file: str) -> None:
        """Check that every id has a row in the model's table, and captions get an end token."""
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        problems = []
        if largest >= self._base.pieces:
            problems.append(
                f"{file}: found ids up to {largest}, expected at most {self._base.pieces - 1}, the "
                "last row of the model's embedding table"
            )
        added = self._tokenizer.num_special_tokens_to_add(False)
        if added != self._marks:
            problems.append(
                f"{file}: found {added} tokens added to a caption, expected {self._marks} "
                f"({_MARKS[self._base.kind]})"
            )
        if problems:
            raise DataError(*problems)

    def _check_limit(self, max_words: int) -> None:
        base = self._base
        if base.pads_to_limit and self.limit < base.positions:
            raise ConfigError(
                f"data.max_words: found {max_words}, expected at least {base.positions}, because "
                f"{base.kind} pads every caption to this length"
            )
        if self.limit <= self._marks:
            raise ConfigError(
                f"data.max_words: found {max_words}, expected more than {self._marks}, because "
                f"each caption has the tokens {_MARKS[base.kind]}"
            )


def _read_tokenizer(file: Path) -> Any:
    """Read a tokenizer.json, with errors as `Pieces`."""
    # Else the library warns at every fork of a process that has tokenized.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    tokenizer = needed_module("tokenizers").Tokenizer
    try:
        return tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain exceptions
        raise DataError(
            f"{file}: cannot be read ({first_line(error, 200)}), expected a tokenizer file of the "
            "package tokenizers"
        ) from error
