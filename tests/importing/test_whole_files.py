"""Files of a download that broke off, or were damaged: never a part that looks like the whole."""

import gzip
import json

import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import parquet

from l2rm_jax.errors import DataError
from l2rm_jax.importing.delimited import read_table
from l2rm_jax.importing.json_rows import read_json
from l2rm_jax.importing.samples import read_tar
from l2rm_jax.importing.sources import open_source
from tests.importing.made import write_tar

COUNT = 8
ROWS = [{"image": f"{n}.jpg", "caption": f'a "dog", number {n}'} for n in range(COUNT)]
BLOCK = 512  # bytes of a tar archive: here each member is a block with a header of a block


@pytest.fixture
def archive(tmp_path):
    return write_tar(tmp_path / "a.tar", {f"{n}.txt": f"text {n}".encode() for n in range(COUNT)})


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: 4 * BLOCK],  # between two members
        lambda data: data[: 4 * BLOCK + 100],  # within a header
        lambda data: data[: 5 * BLOCK + 3],  # within a member
        lambda data: data[: 2 * COUNT * BLOCK],  # after the last member
        lambda data: data[: (2 * COUNT + 1) * BLOCK],  # one block of zeros of two
        lambda data: data[: 6 * BLOCK] + b"x" * BLOCK + data[7 * BLOCK :],  # a header
        lambda data: data[: 6 * BLOCK] + bytes(3 * BLOCK) + data[9 * BLOCK :],  # zeroed blocks
        lambda data: data + data,  # joined to another
    ],
)
def test_damaged_archive(archive, damage):
    assert len(read_tar(archive)) == COUNT
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(DataError, match=r"a\.tar: archive damaged after member \d+"):
        read_tar(archive)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_compressed_text(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"image,caption\na.jpg,a dog\n"))
    with pytest.raises(DataError, match=rf"{name}: found a compressed file, expected text"):
        open_source(tmp_path / name, tmp_path / "cache")


def test_cut_text_has_only_rows_of_the_whole(tmp_path):
    """Wherever a table is cut: only the last field of the last row may be another."""
    lines = [",".join((row["image"], f'"{n}"', "a dog")) for n, row in enumerate(ROWS)]
    whole = "\n".join(["image,number,caption", *lines, ""])
    expected = [{"image": f"{n}.jpg", "number": f"{n}", "caption": "a dog"} for n in range(COUNT)]
    file = tmp_path / "a.csv"
    for size in range(len("image,number,caption\n"), len(whole)):
        file.write_text(whole[:size])
        table, skipped = read_table(file, "csv", ["image", "caption"])
        found = table.to_pylist()
        begun = whole[:size].count("\n") - whole[:size].endswith("\n")
        assert len(found) + len(skipped) == begun
        assert found[:-1] == expected[: len(found)][:-1]
        if found:
            last, right = found[-1], expected[len(found) - 1]
            assert {**last, "caption": ""} == {**right, "caption": ""}
            assert right["caption"].startswith(last["caption"])


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("name", [None, "images"])
def test_cut_document_of_json(tmp_path, indent, name):
    """Wherever it is cut: an error, and no table of the rows before."""
    text = json.dumps(ROWS if name is None else {name: ROWS}, indent=indent)
    if indent == 0:  # an object in each line
        text = text.replace(",\n", ", ").replace("{\n", "{").replace("\n}", "}")
        text = text.replace("}, {", "},\n{")
    file = tmp_path / "a.json"
    file.write_text(text)
    assert len(read_json(file)[1]) == COUNT
    for size in range(1, len(text)):
        file.write_text(text[:size])
        with pytest.raises(DataError, match=r"a\.json: no JSON"):
            read_json(file)


def test_cut_lines_of_json(tmp_path):
    text = "".join(f"{json.dumps(row)}\n" for row in ROWS)
    file = tmp_path / "a.jsonl"
    for size in range(len(text) // 2, len(text)):
        file.write_text(text[:size])
        _, table, skipped = read_json(file)
        assert table.to_pylist() == ROWS[: len(table)]
        assert len(table) + len(skipped) == text[: size - 1].count("\n") + 1


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_cut_parquet(tmp_path, share):
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.Table.from_pylist(ROWS), file)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"a\.parquet"):
        open_source(file, tmp_path / "cache")


def test_cut_rows_of_datasets(tmp_path):
    """Cut between two blocks of rows: Arrow itself reads the first as if that were all."""
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    assert open_source(tmp_path / "saved", tmp_path / "cache").rows == COUNT
    [file] = (tmp_path / "saved").glob("*.arrow")
    table = pa.Table.from_pylist(ROWS)
    with file.open("wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=COUNT // 2)
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    with pytest.raises(DataError, match=r"\.arrow: found no mark at its end"):
        open_source(tmp_path / "saved", tmp_path / "cache")
