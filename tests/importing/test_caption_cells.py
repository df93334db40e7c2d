"""Captions of a cell, in every form in which they are written."""

import json

import numpy as np
import pyarrow as pa
import pytest

from l2rm_jax.importing.caption_cells import captions_of, read_captions
from l2rm_jax.importing.pictures import picture_of
from l2rm_jax.importing.sources import Part, Source
from l2rm_jax.importing.text_lists import UnreadableError

TWO = ["the plain cup, red", 'it\'s a "cup" 7\n[seen] from\\above']
OBJECTS = [{"tokens": ["a"], "raw": text, "sentid": 3} for text in TWO]
FORMS = {
    "a list": TWO,
    "a tuple": tuple(TWO),
    "JSON": json.dumps(TWO),
    "JSON with escapes": json.dumps(TWO, ensure_ascii=True, indent=2),
    "Python's list": repr(TWO),
    "Python's tuple": repr(tuple(TWO)),
    "NumPy's text": str(np.array(TWO)),
    "NumPy's repr": repr(np.array(TWO)),
    "NumPy's objects": repr(np.array(TWO, object)),
    "NumPy's scalars": repr([np.str_(text) for text in TWO]),
    "nulls": [None, *TWO, float("nan")],
    "JSON's nulls": json.dumps([None, *TWO, float("nan")]),
    "Python's nulls": repr([None, *TWO, float("nan")]),
    "missing values of pandas": f"[{TWO[0]!r}, <NA>, {TWO[1]!r}, NaT]",
    "objects": OBJECTS,
    "JSON's objects": json.dumps(OBJECTS),
    "Python's objects": repr(OBJECTS),
    "an object of lists": {"sentid": [1, 2], "raw": TWO},
    "an object of lists as text": repr({"sentid": [1, 2], "Caption": TWO}),
    "a conversation": [
        {"from": "human", "value": "<image>\nWhat is it?"},
        {"from": "gpt", "value": TWO[0]},
        {"from": "human", "value": "And?"},
        {"from": "gpt", "value": TWO[1]},
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "User", "content": [{"type": "image"}, {"type": "text", "text": "Say it."}]},
        {"role": "assistant", "content": [{"type": "text", "text": TWO[0]}]},
        {"role": "assistant", "content": TWO[1]},
    ],
    "turns as lists": {"from": ["user", "model", "model"], "value": ["And?", *TWO]},
    "parts of other types": [{"type": "image", "image": "a.jpg"}, *OBJECTS],
    "bytes": [text.encode() for text in TWO],
}
for each in ("a conversation", "messages", "turns as lists"):
    FORMS[f"{each} as JSON"] = json.dumps(FORMS[each])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_two_captions(form):
    assert captions_of(FORMS[form]) == TWO


@pytest.mark.parametrize(
    ("cell", "captions"),
    [
        ("a dog, 'so'", ["a dog, 'so'"]),
        ("", [""]),
        (None, [None]),
        (float("nan"), [None]),
        (7, ["7"]),
        ("[]", []),
        ("[null]", []),
        ("['']", [""]),
        ({"text": "a dog"}, ["a dog"]),
        ('{"caption": "a dog", "score": 0.5}', ["a dog"]),
        (b"a dog", ["a dog"]),
    ],
)
def test_other_cells(cell, captions):
    assert captions_of(cell) == captions


@pytest.mark.parametrize(
    "cell",
    [
        "[a dog, a cat]",
        "['a dog', 'a c",
        "['a dog', ",
        "['a dog'] on a bed",
        "['a' 'b' ... 'z']",
        "[1, 2]",
        "('so')",
        "[" * 5000,
        [["a", "dog"], ["a", "cat"]],
        {"tokens": ["a"], "id": 3},
    ],
)
def test_cells_that_cannot_be_read(cell):
    with pytest.raises(UnreadableError):
        captions_of(cell)


@pytest.mark.parametrize("cell", ["['a dog', -cat]", "['a dog', 'a c", "[" + "-" * 9999 + "1]"])
def test_the_reason_is_the_same_in_every_process(cell):
    with pytest.raises(UnreadableError, match=r"^no list of Python, NumPy or JSON$"):
        captions_of(cell)


def read(cells, kind=None):
    table = pa.table({"caption": pa.array(cells, kind)})
    return read_captions(Source("t", "csv", ".", (Part(table, None),), []), ["caption"])


def unreadable(found):
    return np.flatnonzero(found.unreadable.is_valid()).tolist()


def test_a_cell_that_cannot_be_read_is_an_error_only_among_lists():
    found = read([*map(repr, [TWO] * 3), "['torn", "plain"])
    assert found.text.to_pylist() == [*TWO * 3, None, "plain"]
    assert found.row.tolist() == [0, 0, 1, 1, 2, 2, 3, 4] and unreadable(found) == [6]
    found = read(["[red] cup", "[blue] cup", "(so)", "['torn"])
    assert found.text.to_pylist() == ["[red] cup", "[blue] cup", "(so)", "['torn"]
    assert not unreadable(found)


def test_nested_columns_are_read_as_their_text_is():
    kinds = [
        (TWO, pa.list_(pa.string())),
        (TWO, pa.large_list(pa.large_string())),
        (OBJECTS, pa.list_(pa.struct({"raw": pa.string(), "sentid": pa.int64()}))),
        ({"raw": TWO}, pa.struct({"raw": pa.list_(pa.string())})),
    ]
    for cell, kind in kinds:
        found = read([cell, None, cell], kind)
        assert found.text.to_pylist() == TWO * 2 and found.row.tolist() == [0, 0, 2, 2]


def test_several_columns_of_lists_stay_with_their_rows():
    table = pa.table({"a": ["['x', 'y']", "['torn", "['z']"], "b": ["1", "2", "3"]})
    found = read_captions(Source("t", "csv", ".", (Part(table, None),) * 2, []), ["b", "a"])
    assert found.text.to_pylist() == ["1", "x", "y", "2", None, "3", "z"] * 2
    assert found.row.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5]
    assert unreadable(found) == [4, 11]


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("a.jpg", "a.jpg"),
        ("[a].jpg", "[a].jpg"),
        ('{"path": "a.jpg", "bytes": null}', "a.jpg"),
        ({"file_name": "a.jpg"}, "a.jpg"),
        ("['a.jpg']", "a.jpg"),
        (["a.jpg"], "a.jpg"),
        (["a.jpg", "b.jpg"], ""),
        (None, ""),
    ],
)
def test_the_name_of_a_picture(cell, name):
    assert picture_of(cell) == (None, name)


def test_the_bytes_of_a_picture(tmp_path):
    (tmp_path / "archive").write_bytes(b"0123456789")
    place = {"path": "a.jpg", "file": str(tmp_path / "archive"), "start": 2, "size": 3}
    assert picture_of(place) == (b"234", "a.jpg")
    assert picture_of({"bytes": b"x", "path": "a.jpg"}) == (b"x", "a.jpg")
    assert picture_of(b"x") == (b"x", "")
