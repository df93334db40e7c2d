"""Sources beyond the declared limits are refused in one line, before they take hours or memory."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from l2rm_jax.errors import DataError
from l2rm_jax.importing import limits
from l2rm_jax.importing.caption_cells import read_captions
from l2rm_jax.importing.sources import open_source
from tests.importing.made import encoded, picture, write_tar

MANY = 20_000
PICTURE = encoded(picture(0))
ROW = {"image": "a.png", "caption": "a dog"}


def wide_table(place):
    names = ",".join(f"c{n}" for n in range(10_000))
    (place / "a.csv").write_text(f"image,caption,{names}\na.png,a dog{',1' * 10_000}\n" * 3)
    return place / "a.csv"


def fields_of_their_own(place):
    rows = (json.dumps({**ROW, f"k{n}": n}) for n in range(MANY))
    (place / "a.jsonl").write_text("\n".join(rows))
    return place / "a.jsonl"


def wide_parquet(place):
    parquet.write_table(pa.table({f"c{n}": [1] for n in range(2000)}), place / "a.parquet")
    return place / "a.parquet"


def endings(place):
    files = {f"s{n // 2}.{'png' if n % 2 else f'e{n}'}": PICTURE for n in range(4000)}
    return write_tar(place / "a.tar", files)


def fields_of_samples(place):
    content = {f"k{n}": n for n in range(MANY)}
    return write_tar(place / "a.tar", {"s.png": PICTURE, "s.json": json.dumps(content).encode()})


@pytest.mark.parametrize(
    "make", [wide_table, fields_of_their_own, wide_parquet, endings, fields_of_samples]
)
def test_too_many_columns(tmp_path, make):
    with pytest.raises(DataError, match=r"a\.\w+: found [\d,]+ columns or more") as caught:
        open_source(make(tmp_path), tmp_path / "cache")
    assert len(str(caught.value).splitlines()) == 1


def test_equal_rows_of_a_small_file(tmp_path):
    """Twenty million equal rows take a hundred kilobytes in Parquet."""
    table = pa.Table.from_pylist([ROW] * 1_000_000)
    with parquet.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for _ in range(limits.ROWS // len(table) + 1):
            writer.write_table(table)
    with pytest.raises(DataError, match=r"a\.parquet: found 11,000,000 rows"):
        open_source(tmp_path / "a.parquet", tmp_path / "cache")


def test_rows_of_all_files_count(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ROWS", 5)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("image,caption\n" + "a.png,a dog\n" * 3)
    with pytest.raises(DataError, match=r"found 6 rows, expected at most 5 in one import"):
        open_source(tmp_path / "?.csv", tmp_path / "cache")


def test_too_many_captions_in_a_cell(tmp_path):
    table = pa.table({"image": ["a.png"], "caption": [["a dog"] * 20_000]})
    parquet.write_table(table, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet", tmp_path / "cache")
    with pytest.raises(DataError, match=r"a\.parquet: column caption: found 20,000 captions"):
        read_captions(source, ["caption"])


@pytest.mark.parametrize("inner", ['{"a":', "["])
def test_deep_json(tmp_path, inner):
    """A row that is nested too deeply is left out; as a document, it is an error."""
    deep = inner * 100_000 + "1" + {"[": "]"}.get(inner, "}") * 100_000
    lines = [json.dumps(ROW), f'{{"image": "b.png", "caption": {deep}}}', json.dumps(ROW)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = open_source(tmp_path / "a.jsonl", tmp_path / "cache")
    assert [row for row, _ in source.skipped] == [2] and source.rows == 3
    (tmp_path / "a.json").write_text(f"[{deep}]")
    with pytest.raises(DataError, match=r"a\.json: no JSON"):
        open_source(tmp_path / "a.json", tmp_path / "cache")
