"""Captions by a pretrained tokenizer: ids, cuts, and words from pieces."""

import json
import logging

import numpy as np
import pytest

from l2rm_jax.data.batches import caption_batches
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.pretrained.tokenizer import Pieces
from tests.models.pretrained.golden import GOLDEN, KINDS, read_bases, read_expected

CAPTIONS = [  # those of `make.py`
    "A red cube lies behind two small blue balls.",
    "two balls",
    "a yellow cone stands in front of the cube , near a green ring on the floor of a room",
    "Blue rings, 3 of them!",
    "the cone is red and the balls are small",
]
LONG = "a red cube and " * 50


def read_pieces(kind, max_words=64):
    return Pieces(GOLDEN / kind / "tokenizer.json", read_bases(kind).text, max_words)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(kind):
    """Whatever padding and truncation the file asks for: the BERT's cuts at 16 tokens."""
    expected = read_expected(kind)
    found = read_pieces(kind).encode_all(CAPTIONS)
    assert [len(ids) for ids in found] == expected["lengths"].tolist()
    for ids, row in zip(found, expected["ids"], strict=True):
        assert ids.dtype == np.int32
        np.testing.assert_array_equal(ids, row[: len(ids)])


@pytest.mark.parametrize(("kind", "limit"), [("bert", 40), ("clip", 60), ("siglip", 56)])
def test_a_long_caption_keeps_its_end_and_is_counted(kind, limit, caplog):
    """It is cut at the model's positions, or at `max_words` if that is less."""
    for most in (64,) if kind == "siglip" else (64, 20):
        pieces = read_pieces(kind, most)
        short, long = pieces.encode_all(["a cube", "a red cube"])[-1], None
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            _, long = pieces.encode_all(["a cube", LONG], "captions of dev")
        assert len(long) == pieces.limit and long[-1] == short[-1] and long[0] == short[0]
        [record] = caplog.records
        assert "captions of dev: 1 of 2" in record.message and str(pieces.limit) in record.message
    assert read_pieces(kind).limit == limit
    # Padding a batch to a bucket never cuts one either.
    batch, *_ = next(caption_batches([long, short], 2))
    rows = np.arange(2), batch.lengths - 1
    assert set(batch.tokens[rows]) == {short[-1]} and batch.tokens.shape[1] >= len(long)


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_a_caption_have_the_columns_of_their_pieces(kind):
    caption = "Yellow cones, near the cube"
    pieces = read_pieces(kind)
    words, columns = pieces.words(caption)
    assert [word.strip(" ,") for word in words if word.strip(" ,")] == caption.replace(
        ",", ""
    ).split()
    used = np.concatenate(columns)
    np.testing.assert_array_equal(used, 1 + np.arange(pieces.counts([caption]).read[0]))
    assert max(map(len, columns)) > 1  # a word of several pieces


def test_counts():
    pieces = read_pieces("bert", 20)
    counts = pieces.counts(["two balls", "two 漢", LONG, ""])
    own = len(pieces.encode_all(["two balls"])[0]) - 2
    assert counts.read.tolist() == [own, 2, 18, 0]
    assert counts.unknown.tolist() == [0, 1, 0, 0]
    assert counts.is_cut.tolist() == [False, False, True, False]


@pytest.mark.parametrize(("kind", "max_words"), [("siglip", 32), ("bert", 2)])
def test_max_words_must_leave_room(kind, max_words):
    with pytest.raises(ConfigError, match=f"data.max_words: .*{max_words}"):
        read_pieces(kind, max_words)


def test_a_tokenizer_must_fit_its_model(tmp_path):
    """Each file against the model of another kind."""
    base = read_bases("bert").text
    with pytest.raises(DataError, match=r"clip/tokenizer\.json: .*109.*91"):
        Pieces(GOLDEN / "clip" / "tokenizer.json", base, 64)
    with pytest.raises(DataError) as found:
        Pieces(GOLDEN / "clip" / "tokenizer.json", read_bases("siglip").text, 64)
    assert "2 tokens" in found.value.args[1]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: "):
        Pieces(tmp_path / "tokenizer.json", base, 64)


def test_ids_for_the_augmentation():
    ids = read_pieces("bert").ids()
    assert ids.special == (0, 1, 2, 3, 4) and ids.mask == 4 and ids.count == 90
    words, columns = read_pieces("bert").words("yellow cones")
    tokens = read_pieces("bert").encode_all(["yellow cones"])[0]
    assert words == ["yellow", "cones"]
    for own in columns:
        assert [tokens[at] in ids.continuations for at in own] == [at > own[0] for at in own]
    assert read_pieces("clip").ids() is None


def test_a_tokenizer_that_fails_is_named(tmp_path):
    """Its token for unknown pieces has no id."""
    content = json.loads((GOLDEN / "clip" / "tokenizer.json").read_bytes())
    content["model"]["unk_token"] = "<nothing>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    pieces = Pieces(tmp_path / "tokenizer.json", read_bases("clip").text, 64)
    with pytest.raises(DataError, match=r"tokenizer\.json: .* dev"):
        pieces.encode_all(["a 漢"], "captions of dev")
