"""Further columns of a table follow their rows to the captions, whatever the kind of the table."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l2rm_jax.data.columns import read_columns
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError
from l2rm_jax.importing.splits import SPLITS
from tests.importing.made import encoded, imported, picture, write_csv, write_jsonl, write_tar

HEADER = ("filepath", "title", "seller", "uid", "split")
# Images return later, and their captions are apart. Rows 3 and 9 are rejected: they have an empty
# caption, and a split that is unknown.
ROWS = [
    (f"{row % 7}.jpg", "" if row == 3 else f"caption {row}", f"shop {row % 3}", 2**60 + row, split)
    for row in range(1, 22)
    for split in ("unknown" if row == 9 else ("train", "train", "dev", "test")[row % 7 % 4],)
]
ROWS[8] = ("9.jpg", *ROWS[8][1:])


def captions_and_columns(out) -> dict[str, tuple]:
    """The values of the columns of each caption, over all splits."""
    found = {}
    for split in SPLITS:
        texts = out / f"{split}_caps.txt"
        captions = texts.read_text().splitlines() if texts.is_file() else []
        columns = read_columns(out, split, len(captions))
        values = zip(*columns.values(), strict=True)
        found |= dict(zip(captions, values, strict=bool(columns)))
    return found


def write_parquet(path, rows):
    columns = zip(HEADER, zip(*rows, strict=True), strict=True)
    pq.write_table(pa.table({name: list(cells) for name, cells in columns}), path, row_group_size=4)
    return path


WRITERS = {
    "csv": lambda path, rows: write_csv(path, rows, HEADER),
    "tsv": lambda path, rows: write_csv(path, rows, HEADER, "\t"),
    "jsonl": lambda path, rows: write_jsonl(
        path, [dict(zip(HEADER, r, strict=True)) for r in rows]
    ),
    "parquet": write_parquet,
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("files", [1, 2])
def test_each_caption_has_the_values_of_its_row(tmp_path, kind, files):
    """With splits, rejected rows, and in one or two files."""
    (tmp_path / "tables").mkdir()
    for number, own in enumerate(np.array_split(np.arange(len(ROWS)), files)):
        WRITERS[kind](tmp_path / "tables" / f"{number}.{kind}", [ROWS[row] for row in own])
    found = imported(tmp_path, "tables", 8, max_rejected=1)
    number = int if kind == "parquet" else str
    expected = {
        caption: (seller, number(uid))
        for row, (_, caption, seller, uid, _) in enumerate(ROWS, 1)
        if row not in (3, 9)
    }
    assert captions_and_columns(found.out) == expected
    assert found.record["columns"]["further"] == ("seller", "uid")
    assert {f"{split}_columns.parquet" for split in SPLITS} < set(found.record["files"])
    assert found.record["rows"]["rejected"] == 2


def test_a_row_the_reader_skips_moves_no_other(tmp_path):
    text = "image,caption,shop\n1.jpg,one,a\n2.jpg,two,b,too,many\n3.jpg,three,c\n"
    (tmp_path / "t.csv").write_text(text)
    found = imported(tmp_path, "t.csv", 2, max_rejected=1)
    assert captions_and_columns(found.out) == {"one": ("a",), "three": ("c",)}


def test_captions_of_a_row_share_its_values(tmp_path):
    """In two columns, and as lists in a cell; without `split` as a split, it is a column too."""
    rows = [
        {"image": f"{n}.jpg", "en": [f"a {n}", f"b {n}"], "de": f"c {n}", "shop": n, "split": "x"}
        for n in range(3)
    ]
    write_jsonl(tmp_path / "t.jsonl", rows)
    found = imported(tmp_path, "t.jsonl", 3, split="1,0,0", caption_columns=("en", "de"))
    expected = {f"{name} {n}": (str(n), "x") for n in range(3) for name in "abc"}
    assert captions_and_columns(found.out) == expected


def test_values_keep_their_type(tmp_path):
    """Missing values turn no long number into a float; bytes and lists are left out."""
    day, moment = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5)
    table = {
        **{"image": ["a", "b", "c"], "caption": ["one", "two", "three"]},
        **{"uid": [2**60 + 1, None, 7], "price": [0.5, None, 2.0], "new": [True, False, True]},
        **{"day": [day, None, day], "at": [moment] * 3, "count": pa.array([1, 2, 3], pa.int16())},
        **{"shop": [None, "x", "[x"], "kind": pa.array(["u", "v", None]).dictionary_encode()},
        **{"raw": [b"1", b"2", b"3"], "vector": [[0.1]] * 3, "box": [{"x": 1}] * 3},
        **{"tags": ['["u"]', None, "[]"], "about": ['{"u": 1}'] * 3, "nothing": pa.nulls(3)},
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    columns = read_columns(imported(tmp_path, "t.parquet", 3).out, "train", 3)
    expected = {
        "uid": np.array([2**60 + 1, None, 7], object),
        "price": np.array([0.5, np.nan, 2.0]),
        "new": np.array([True, False, True]),
        "day": np.array(["2026-01-02", "NaT", "2026-01-02"], "M8[D]"),
        "at": np.array(["2026-01-02T03:04:05"] * 3, "M8[us]"),
        "count": np.array([1, 2, 3], np.int16),
        "shop": np.array([None, "x", "[x"], object),
        "kind": np.array(["u", "v", None], object),
        "box.x": np.array([1, 1, 1]),
    }
    assert list(columns) == list(expected)
    for name, values in expected.items():
        assert columns[name].dtype == values.dtype, name
        np.testing.assert_array_equal(columns[name], values)


def test_files_may_differ_in_columns_and_types(tmp_path):
    first = {"image": ["a"], "caption": ["one"], "uid": [1], "size": [2], "shop": ["x"]}
    second = {"image": ["b"], "caption": ["two"], "uid": ["u2"], "size": [0.5]}
    (tmp_path / "tables").mkdir()
    for number, table in enumerate((first, second)):
        pq.write_table(pa.table(table), tmp_path / "tables" / f"{number}.parquet")
    expected = {"one": ("1", 2.0, "x"), "two": ("u2", 0.5, None)}
    assert captions_and_columns(imported(tmp_path, "tables", 2).out) == expected


def test_bytes_that_are_not_utf8_stop_no_import(tmp_path):
    shop = pa.array([b"x", b"\xff", b"y"]).view(pa.string())
    table = {"image": ["a", "b", "c"], "caption": ["one", "two", "three"], "shop": shop}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    columns = read_columns(imported(tmp_path, "t.parquet", 3).out, "train", 3)
    assert columns["shop"].tolist() == ["x", "\ufffd", "y"]


def test_fields_of_the_json_in_an_archive_are_kept(tmp_path):
    files = {}
    for number in range(3):
        files[f"{number}.jpg"] = encoded(picture(number))
        files[f"{number}.txt"] = f"caption {number}".encode()
        files[f"{number}.json"] = json.dumps({"url": f"u{number}", "sizes": [1, 2]}).encode()
    write_tar(tmp_path / "t.tar", files)
    [(name, values)] = read_columns(imported(tmp_path, "t.tar", 3).out, "train", 3).items()
    assert (name, values.tolist()) == ("json.url", ["u0", "u1", "u2"])


def test_a_table_without_further_columns_has_no_such_file(tmp_path):
    write_csv(tmp_path / "t.csv", [("a.jpg", "one"), ("b.jpg", "two")])
    found = imported(tmp_path, "t.csv", 2)
    assert not list(found.out.glob("*.parquet")) and not found.record["columns"]["further"]
    assert read_columns(found.out, "train", 2) == {}


def test_a_wrong_number_of_rows_and_damage_are_named(tmp_path):
    pq.write_table(pa.table({"shop": ["a", "b"]}), split_file(tmp_path, "dev", "columns"))
    with pytest.raises(DataError, match=r"dev_columns.parquet: found 2 rows, expected 3"):
        read_columns(tmp_path, "dev", 3)
    split_file(tmp_path, "dev", "columns").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"dev_columns.parquet: cannot be read"):
        read_columns(tmp_path, "dev", 2)
