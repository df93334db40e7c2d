"""Tables as people write them: separators, headers, quotes, blank lines, encodings."""

import csv
import io
import random
from pathlib import Path

import pytest

from l2rm_jax.importing import delimited
from l2rm_jax.importing.columns import find_columns
from l2rm_jax.importing.csv_rows import find_dialect, read_records
from l2rm_jax.importing.delimited import read_table
from l2rm_jax.importing.sources import open_source
from l2rm_jax.importing.text_io import guess_encoding

NAMES = [f"p{number}.jpg" for number in range(30)]
ROWS = [(name, f"the plain cup {name}") for name in NAMES]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(delimited, "_CHUNK", 7)


def write(path: Path, lines: list[str], end: str = "\n", encoding: str = "utf-8") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode(encoding))
    return path


def rows_of(path: Path, known: tuple[str, ...] = ()) -> list[tuple]:
    table, skipped = read_table(path, path.suffix[1:].replace("txt", "tsv"), known)
    assert not skipped
    return list(zip(*(table[name].to_pylist() for name in table.column_names[:2]), strict=True))


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "txt"])
def test_the_separator_is_found(tmp_path, separator, kind):
    """Captions hold other separators, as often in each row."""
    other = ";" if separator == "," else ","
    rows = [(name, f"{text}{other} and{other} so") for name, text in ROWS]
    lines = [separator.join(row) for row in [("filepath", "title"), *rows]]
    assert rows_of(write(tmp_path / f"a.{kind}", lines)) == rows


def test_the_separator_is_found_by_names_that_the_user_gives(tmp_path):
    lines = ["photo;english, short", *(f"{name};{text}" for name, text in ROWS)]
    path = write(tmp_path / "a.csv", lines)
    assert find_dialect(path, "csv", ()).separator == ";"
    lines = ["photo;english,german", *(f"{name};{text},x" for name, text in ROWS)]
    assert find_dialect(write(tmp_path / "b.csv", lines), "csv", ("photo",)).separator == ";"


@pytest.mark.parametrize(
    ("first", "columns"),
    [
        ("image, caption", ("image", "caption")),
        (' "Image",  Caption ', ("Image", "Caption")),
        ("\ufefffile_name,text", ("file_name", "text")),
        ("p99.jpg,the first", ("image", "caption")),
        ("the first,http://a.b/c?d=1", ("caption", "url")),
        ("7,the first row,IMG_1.JPG", ("column 1", "caption", "image")),
        ("photo,english", ("photo", "english")),
        ("text,image,text,", ("text", "image", "text (column 3)", "column 4")),
    ],
)
def test_headers(tmp_path, first, columns):
    cells = {"image": "p1.jpg", "url": "http://a.b/1", "caption": "a longer text", "column 1": "1"}
    row = ",".join(cells.get(name, "x") for name in columns)
    dialect = find_dialect(write(tmp_path / "a.csv", [first, row, row]), "csv", ())
    assert dialect.names == columns
    assert dialect.has_header == (not any(mark in first for mark in ("first", "JPG")))


QUOTED = [
    ('a "b", c', '"a ""b"", c"'),
    ('a "b", c', r'"a \"b\", c"'),
    ("two\nlines, and", '"two\nlines, and"'),
    ('24" screen', '24" screen'),
    ('"mind the gap', '"mind the gap'),
    ('say "go" now', 'say "go" now'),
    ('"go" he said', '"go" he said'),
    ("ends with a \\", '"ends with a \\"'),
    ('so "it" ends "', r'"so \"it\" ends \""'),
    ("", '""'),
    ("a, b", ' "a, b"'),
]


@pytest.mark.parametrize(("caption", "written"), QUOTED)
def test_quotes_of_a_field(caption, written):
    """Whatever stands around it."""
    lines = io.StringIO(f"image,caption\n1.jpg,before\n2.jpg,{written}\n3.jpg,after\n")
    records = [fields for _, fields in read_records(iter(lines), ",")]
    assert records[1:] == [["1.jpg", "before"], ["2.jpg", caption], ["3.jpg", "after"]]


@pytest.mark.parametrize("close", [None, 'a screen of 24"', '"so", he said', 'the "end"'])
@pytest.mark.parametrize("distance", [1, 7, 500])
def test_a_stray_quote_swallows_no_row(close, distance):
    rows = [[f"{number}.jpg", f"cup {number}"] for number in range(600)]
    rows[20][1] = '"mind the gap'
    if close is not None:
        rows[20 + distance][1] = close
    lines = [f"{name}\t{text}\n" for name, text in rows]
    found = list(read_records(iter(lines), "\t"))
    assert [fields for _, fields in found] == rows
    assert [raw for raw, _ in found] == lines


def test_rows_are_those_of_pythons_reader_where_quotes_are_well_formed():
    rng = random.Random(0)
    words = ["a", "dog", ",", '"', "\n", "'", ";", "b.jpg", " "]
    rows = [
        [f"{number}.jpg", "".join(rng.choices(words, k=rng.randint(1, 9))), "train"]
        for number in range(2000)
    ]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    lines = text.getvalue().splitlines(keepends=True)
    assert [fields for _, fields in read_records(iter(lines), ",")] == rows


def test_each_byte_is_of_one_row_or_of_a_blank_line(tmp_path):
    lines = ["", "image,caption", "", '1.jpg,"two', 'lines"', " ,  ", '2.jpg,"torn', "3.jpg,x", ""]
    dialect = find_dialect(write(tmp_path / "a.csv", lines), "csv", ())
    records = list(dialect.records())
    assert [fields for _, fields in records] == [
        ["image", "caption"],
        ["1.jpg", "two\nlines"],
        ["2.jpg", '"torn'],
        ["3.jpg", "x"],
    ]
    kept = "".join(raw for raw, _ in records)
    assert kept == "".join(f"{line}\n" for line in lines if line.strip(" ,"))


SEPARATED = ["", "sep=;", "SEP=;;", '"sep=;"', "sep=,", "sep=\t", "sep=|", "sep=^"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("first", SEPARATED)
@pytest.mark.parametrize("has_quote", [False, True])
def test_encodings_ends_and_first_lines(tmp_path, first, encoding, end, has_quote):
    """A first line may name the separator, which is no row; blank lines are none either."""
    separator = first.strip('"')[4:5] or ","
    quoted = f'"the cup {separator} so é"' if has_quote else "the plain cup é"
    for name, header in (("a.csv", [separator.join(["image", "caption"])]), ("b.csv", [])):
        lines = [*[first] * bool(first), *header, *(f"{n}{separator}{quoted}" for n in NAMES)]
        path = write(tmp_path / name, lines, end, encoding)
        assert rows_of(path) == [(name, quoted.strip('"')) for name in NAMES]
        text = (dialect := find_dialect(path, "csv", ())).text
        kept = text.mark + b"".join(text.encode(record) for record, _ in dialect.records())
        assert kept == path.read_bytes()
        blank = write(tmp_path / "c.csv", [*lines, "", ""], end, encoding)
        assert rows_of(blank) == rows_of(path)


@pytest.mark.parametrize(
    ("encoding", "text", "names"),
    [
        ("gb18030", "三只黑猫看着镜头，背景是大海", {"gb18030", "gbk"}),
        ("shift_jis", "海辺を走る犬と子供たちがいる", {"cp932", "shift_jis", "shift_jis_2004"}),
        ("cp1252", "un café à la plage, où déjà", {"cp1250", "cp1252", "cp1254", "cp1257"}),
    ],
)
def test_another_encoding_is_named(tmp_path, encoding, text, names):
    pytest.importorskip("charset_normalizer")
    lines = ["image,caption", *(f"{name},{text}" for name in NAMES)]
    assert guess_encoding([write(tmp_path / "a.csv", lines, encoding=encoding)]) in names
    assert guess_encoding([write(tmp_path / "a.csv", lines)]) is None


def test_columns_are_found_in_any_case(tmp_path):
    lines = [" IMAGE ,Text (English)", *map(",".join, ROWS)]
    source = open_source(write(tmp_path / "a.csv", lines), tmp_path / "cache")
    columns = find_columns(source, "", ("text (english)",), by_shares=True, is_encoded=True)
    assert columns[:2] == (("IMAGE",), ("Text (English)",))
