"""No row is lost: rows read = pairs written + rows rejected, on hostile tables of every kind."""

import csv
import json
import random
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from l2rm_jax.data.segmentation import clean_text
from l2rm_jax.errors import DataError
from tests.importing.made import encoded, imported, picture, write_jsonl, write_tar

Row = tuple[str, str]  # an image and a caption; "" for none
HOSTILE = '"""\'\',;|\t\\ \n\r#[]{}()<>ab.é中\u200b\u200d\ufeff\u2028\x0b\x1f\x85\ufffd'
# A surrogate is no character, NUL stands for UTF-16, and what begins like a list may be one.
TEXT = st.text(
    st.sampled_from(HOSTILE) | st.characters(exclude_categories=["Cs", "Cc"]), max_size=9
)
ROW = st.tuples(st.integers(-1, 5), st.just("") | TEXT.map(lambda text: f"a {text}"))
ROWS = st.lists(ROW, max_size=12)
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def numbered(rows: list[tuple[int, str]]) -> list[Row]:
    """Rows with names of pictures; the first is right, so that something is imported."""
    return [("0.jpg", "right"), *((f"{n}.jpg" if n >= 0 else "", text) for n, text in rows)]


def is_blank(row: Row) -> bool:
    return not "".join(row).strip("\ufeff \t\r\n")


def check_equation(place: Path, source: Path, rows: list[Row], *, keys: list[str] | None = None):
    """Import rows and check that each of them is a pair or is rejected, and which.

    Args:
      place: an empty directory.
      source: the source with these rows.
      rows: the written rows without blank lines.
      keys: what identifies the images, if it is not the names.
    """
    names = [name for name, _ in rows] if keys is None else keys
    images = len({name for name in names if name})
    found = imported(place, source, images, split="1,0,0", max_rejected=1)
    written = found.files["train_rows.npy"].tolist()
    with (place / "out" / "rejected.csv").open(newline="") as file:
        rejected = [int(row) for row, *_ in list(csv.reader(file))[1:]]
    assert sorted(written + rejected) == list(range(1, len(rows) + 1))
    counts = {"read": len(rows), "captions": len(rows)}
    assert found.record["rows"] == counts | {"written": len(written), "rejected": len(rejected)}
    seen, expected = set(), {}
    for number, (name, (_, text)) in enumerate(zip(names, rows, strict=True), 1):
        caption = clean_text(text)
        if name and caption and "\ufffd" not in caption and (name, caption) not in seen:
            seen.add((name, caption))
            expected[number] = caption
    # A caption file has a line for each, whatever is in a caption.
    captions = (place / "out" / "train_caps.txt").read_text().split("\n")[:-1]
    assert dict(zip(written, captions, strict=True)) == expected


ENDS = st.sampled_from(["\n", "\r\n"])
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])
QUOTING = st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
def test_tables_as_csv_writers_write_them(tmp_path_factory, separator):
    @SETTINGS
    @given(ROWS, ENDS, ENCODINGS, QUOTING)
    def check(found, end, encoding, quoting):
        place, rows = tmp_path_factory.mktemp("csv"), numbered(found)
        source = place / f"pairs.{'tsv' if separator == chr(9) else 'csv'}"
        with source.open("w", newline="", encoding=encoding) as file:
            writer = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=end)
            writer.writerows([("image", "caption"), *rows])
        check_equation(place, source, [row for row in rows if not is_blank(row)])

    check()


# Without white space, so that line ends are those of rows, and no list; a quote at the end may
# close one at the beginning.
PLAIN = TEXT.map(lambda text: "".join(text.split())).filter(
    lambda text: not text.endswith('"') and text[:1] not in ("[", "{", "(")
)


@SETTINGS
@given(st.lists(st.tuples(st.integers(-1, 5), PLAIN), max_size=12), st.sampled_from("\n\r"))
def test_tables_without_quoting(tmp_path_factory, found, end):
    """Quotes at the beginning or within a caption are a part of it, and swallow no row."""
    place, rows = tmp_path_factory.mktemp("tsv"), numbered(found)
    lines = ["image\tcaption", *map("\t".join, rows)]
    (place / "pairs.tsv").write_bytes((end.join(lines) + end).encode())
    check_equation(place, place / "pairs.tsv", [row for row in rows if not is_blank(row)])


@SETTINGS
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=12), st.sampled_from(["csv", "tsv"]))
def test_lines_of_any_bytes(tmp_path_factory, lines, kind):
    """Whatever the bytes are, each line is accounted for, even where it is of no row."""
    place = tmp_path_factory.mktemp("bytes")
    lines = [line.translate(None, b'\n\r\x00"') for line in lines]
    (place / f"pairs.{kind}").write_bytes(b"\n".join([b"image,caption", b"0.jpg,right", *lines]))
    filled = [line for line in lines if line.decode("utf-8", "replace").strip("\ufeff \t,")]
    try:
        rows = imported(place, f"pairs.{kind}", 1, split="1,0,0", max_rejected=1).record["rows"]
    except DataError as error:  # more images than vectors, which names the count
        assert "rows" in str(error) or "--source" in str(error)
        return
    assert rows["read"] == len(filled) + 1 == rows["written"] + rows["rejected"]


@pytest.mark.parametrize("form", ["lines", "array", "columns", "coco"])
def test_json_in_every_form(tmp_path_factory, form):
    @SETTINGS
    @given(ROWS)
    def check(found):
        place, rows = tmp_path_factory.mktemp("json"), numbered(found)
        names, texts = [name or None for name, _ in rows], [text for _, text in rows]
        array = [{"image": n, "caption": t} for n, t in zip(names, texts, strict=True)]
        images = [{"id": n, "file_name": name} for n, name in enumerate(names)]
        captions = [{"image_id": n, "id": 7 * n, "caption": t} for n, t in enumerate(texts)]
        forms = {"array": array, "columns": {"image": names, "caption": texts}}
        forms["coco"] = {"images": images, "annotations": captions}
        indent = random.Random(len(rows)).choice([None, 1])
        source = write_jsonl(place / f"pairs.json{'l' * (form == 'lines')}", array)
        if form != "lines":
            source.write_text(json.dumps(forms[form], indent=indent))
        check_equation(place, source, rows)

    check()


@SETTINGS
@given(ROWS)
def test_parquet(tmp_path_factory, found):
    place, rows = tmp_path_factory.mktemp("parquet"), numbered(found)
    columns = {"URL": [n or None for n, _ in rows], "TEXT": [t or None for _, t in rows]}
    pq.write_table(pa.table(columns), place / "pairs.parquet")
    check_equation(place, place / "pairs.parquet", rows)


@SETTINGS
@given(ROWS)
def test_saved_data_sets(tmp_path_factory, found):
    place, rows = tmp_path_factory.mktemp("saved"), numbered(found)
    columns = {"image": [name for name, _ in rows], "text": [text for _, text in rows]}
    datasets.Dataset.from_dict(columns).save_to_disk(place / "saved", num_shards=1)
    check_equation(place, place / "saved", rows)


@pytest.mark.parametrize("form", ["tar", "files"])
def test_samples(tmp_path_factory, form):
    """Samples in any order of their members, some without a picture or a text."""
    content = encoded(picture(1))

    @SETTINGS
    @given(ROWS, st.integers(0, 99))
    def check(found, seed):
        place, rows = tmp_path_factory.mktemp("samples"), numbered(found)
        files = {}
        for number, (name, text) in enumerate(rows):
            if text or not number:
                files[f"{number:03}.txt"] = text.encode()
            if name or not text:
                files[f"{number:03}.{'JPG' if number % 2 else 'jpg'}"] = content
        names = list(files)
        random.Random(seed).shuffle(names)
        if form == "tar":
            write_tar(place / "a.tar", {name: files[name] for name in names})
            order = list(dict.fromkeys(name[:3] for name in names))
        else:
            (place / "a").mkdir()
            for name, each in files.items():
                (place / "a" / name).write_bytes(each)
            order = sorted({name[:3] for name in names})
        source = place / ("a.tar" if form == "tar" else "a")
        check_equation(place, source, [rows[int(key)] for key in order], keys=order)

    check()
