"""Table of the user without the suspicious rows, for each format that an import reads."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l2rm_jax.audit.cleaned_table import Sorted, write_tables
from l2rm_jax.audit.copy_rows import replace_captions
from l2rm_jax.config import default
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from tests.importing.made import write_csv, write_jsonl

IMAGES = 8
ROWS = [
    (f"{row // 2}.jpg", f'a "red", block\nin place {row}' if row % 3 else f"block é {row}", row)
    for row in range(2 * IMAGES)
]
ROWS.insert(5, ("2.jpg", "", 99))  # which the import rejects
HEADER = ("filepath", "title", "more")


def written(kind, path):
    """A table, and a function that reads the values of its column `more`."""
    if kind in ("csv", "tsv"):
        write_csv(path, ROWS, HEADER, "," if kind == "csv" else "\t")
    elif kind == "jsonl":
        write_jsonl(path, [dict(zip(HEADER, row, strict=True)) for row in ROWS])
    else:
        columns = zip(*ROWS, strict=True)
        table = pa.table({name: list(each) for name, each in zip(HEADER, columns, strict=True)})
        pq.write_table(table, path, row_group_size=4)


def read(kind, path):
    if kind == "jsonl":
        return [json.loads(line)["more"] for line in path.read_text().splitlines()]
    if kind == "parquet":
        assert pq.read_schema(path) == pq.read_schema(path.parent / "pairs.parquet")
        return pq.read_table(path)["more"].to_pylist()
    import pandas as pd

    return pd.read_csv(path, sep="," if kind == "csv" else "\t")["more"].tolist()


def imported(tmp_path, source, split="0.5,0.25,0.25"):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "i.npy", rng.normal(size=(IMAGES, 4)).astype(np.float32))
    out = tmp_path / "data"
    vectors = str(tmp_path / "i.npy")
    import_data(Request(out, str(source), image_vectors=vectors, split=split, max_rejected=0.1))
    config = default()
    config.data.path = str(out)
    return config.data, np.load(out / "train_rows.npy")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_suspicious_and_rejected_rows_are_left_out(tmp_path, kind):
    source = tmp_path / f"pairs.{kind}"
    written(kind, source)
    data, train_rows = imported(tmp_path, source)
    kept = np.arange(len(train_rows)) % 3 > 0
    note = write_kept_table(data, kept, tmp_path)
    dropped = {ROWS[row - 1][2] for row in train_rows[~kept]} | {99}
    expected = [row[2] for row in ROWS if row[2] not in dropped]
    assert read(kind, tmp_path / f"kept.{kind}") == expected
    assert note.startswith(f"kept.{kind}: {len(expected)} rows of {source}")


def test_rows_are_copied_byte_by_byte(tmp_path):
    source = tmp_path / "pairs.csv"
    written("csv", source)
    data, train_rows = imported(tmp_path, source)
    write_kept_table(data, np.ones(len(train_rows), bool), tmp_path)
    text = source.read_bytes()
    assert (tmp_path / "kept.csv").read_bytes() == text.replace(b"2.jpg,,99\r\n", b"")


def test_a_row_of_several_captions_stays_with_one_that_is_kept(tmp_path):
    source = tmp_path / "pairs.jsonl"
    rows = [{"filepath": f"{k}.jpg", "title": [f"one {k}", f"two {k}"]} for k in range(IMAGES)]
    write_jsonl(source, rows)
    data, train_rows = imported(tmp_path, source)
    kept = np.ones(len(train_rows), bool)
    kept[[0, 1, 2]] = False
    note = write_kept_table(data, kept, tmp_path)
    lines = (tmp_path / "kept.jsonl").read_text().splitlines()
    assert len(lines) == IMAGES - 1 and json.dumps(rows[train_rows[0] - 1]) not in lines
    assert " 1 " in note


def write_kept_table(data, kept, directory, texts=None, taken=None, certified=()):
    """Write all tables; return the sentences on them as one."""
    pairs = Sorted(kept, texts, taken or {}, np.array(certified, int))
    return "; ".join(write_tables(data, pairs, directory))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_kept_and_dropped_rows_are_all_judged_rows(tmp_path, kind):
    source = tmp_path / f"pairs.{kind}"
    written(kind, source)
    data, train_rows = imported(tmp_path, source, split="1,0,0")
    kept = np.arange(len(train_rows)) % 3 > 0
    write_kept_table(data, kept, tmp_path)
    both = [read(kind, tmp_path / f"{name}.{kind}") for name in ("kept", "dropped")]
    assert both[1] == [ROWS[row - 1][2] for row in np.sort(train_rows[~kept])]
    assert sorted([*both[0], *both[1]]) == sorted(row[2] for row in ROWS if row[2] != 99)
    # Nobody took a proposal, and nothing is certified.
    assert not [*tmp_path.glob("repaired.*"), *tmp_path.glob("certified.*")]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_certified_rows_are_a_table_without_rows_that_were_not_judged(tmp_path, kind):
    source = tmp_path / f"pairs.{kind}"
    written(kind, source)
    data, train_rows = imported(tmp_path, source)
    kept = np.ones(len(train_rows), bool)
    note = write_kept_table(data, kept, tmp_path, certified=[3, 1])
    expected = [ROWS[row - 1][2] for row in np.sort(train_rows[[1, 3]])]
    assert read(kind, tmp_path / f"certified.{kind}") == expected
    assert note.endswith(f"certified.{kind}: 2 rows of {source}, unchanged")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_proposal_that_was_taken_replaces_the_caption_in_its_row(tmp_path, kind):
    source = tmp_path / f"pairs.{kind}"
    written(kind, source)
    data, train_rows = imported(tmp_path, source, split="1,0,0")
    texts = [ROWS[row - 1][1] for row in train_rows]
    wrong = [0, 3, 6]
    kept = ~np.isin(np.arange(len(texts)), wrong)
    note = write_kept_table(data, kept, tmp_path, texts, {0: 3, 3: 7})
    assert "2 captions" in note
    expected = {ROWS[row - 1][2]: (ROWS[row - 1][0], text)
                for row, text in zip(train_rows, texts, strict=True)}  # fmt: skip
    for old, new in ((0, 3), (3, 7)):
        row = ROWS[train_rows[old] - 1]
        expected[row[2]] = row[0], texts[new]
    del expected[ROWS[train_rows[6] - 1][2]]
    import_data(
        Request(
            tmp_path / "again", str(tmp_path / f"repaired.{kind}"),
            image_vectors=str(tmp_path / "i.npy"), split="1,0,0",
        )
    )  # fmt: skip
    rows = np.load(tmp_path / "again/train_rows.npy")
    numbers = read(kind, tmp_path / f"repaired.{kind}")
    found = (tmp_path / "again/train_caps.txt").read_text().splitlines()
    assert sorted(numbers) == sorted(expected)
    for row, text in zip(rows, found, strict=True):
        assert text == " ".join(expected[numbers[row - 1]][1].split())


def test_captions_are_replaced_in_lists_objects_and_lines():
    captions = {"a dog": "two cats"}
    for cell, right in [
        ("  a\tdog ", "two cats"),
        ('["a dog", "b"]', '["two cats", "b"]'),
        ("['a dog', 'b']", '["two cats", "b"]'),
        ({"raw": "a dog", "id": 3}, {"raw": "two cats", "id": 3}),
        ("b\r\na dog\r\n", "b\r\ntwo cats\r\n"),
    ]:
        assert replace_captions(cell, captions) == (right, 1)
        assert replace_captions(cell, {"a do": "x"}) == (cell, 0)


def shuffled(kind, path):
    """Put the rows of a table in another order; of text, the size stays the same."""
    if kind == "parquet":
        table = pq.read_table(path)
        pq.write_table(table.take(np.arange(len(table))[::-1]), path, row_group_size=4)
        return
    size, header = path.stat().st_size, () if kind == "jsonl" else HEADER
    rows = list(reversed(ROWS))
    if kind == "jsonl":
        write_jsonl(path, [dict(zip(HEADER, row, strict=True)) for row in rows])
    else:
        write_csv(path, rows, header, "," if kind == "csv" else "\t")
    assert path.stat().st_size == size


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_whose_rows_have_another_order_is_not_copied(tmp_path, kind):
    source = tmp_path / f"pairs.{kind}"
    written(kind, source)
    content = source.read_bytes()
    data, train_rows = imported(tmp_path, source)
    kept = np.arange(len(train_rows)) % 3 > 0
    shuffled(kind, source)
    assert "has changed" in write_kept_table(data, kept, tmp_path)
    assert not list(tmp_path.glob("kept.*"))
    source.write_bytes(content)  # the content counts, not the time
    assert write_kept_table(data, kept, tmp_path).startswith(f"kept.{kind}: ")


def test_there_is_no_table_where_rows_are_not_known(tmp_path):
    source = tmp_path / "pairs.csv"
    written("csv", source)
    data, train_rows = imported(tmp_path, source)
    kept = np.ones(len(train_rows), bool)
    said = {write_kept_table(data, kept[:-1], tmp_path)}
    with source.open("a") as file:
        file.write("9.jpg,one more,9\n")
    said.add(write_kept_table(data, kept, tmp_path))
    (tmp_path / "data" / "train_rows.npy").unlink()
    said.add(write_kept_table(data, kept, tmp_path))
    assert len(said) == 3 and write_kept_table(None, kept, tmp_path)
    assert not list(tmp_path.glob("kept.*"))
