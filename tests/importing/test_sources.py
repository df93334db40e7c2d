"""Sources of every kind, on real files: the same pairs come out of each."""

import json
import re
import shutil
from pathlib import Path

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing.splits import split_number
from tests.importing.made import (
    PixelEncoder,
    captions_of,
    encoded,
    imported,
    picture,
    rows_of,
    write_csv,
    write_jsonl,
    write_tar,
)

SHARES = "0.5,0.25,0.25"
NAMES = [f"images/{number:03}.png" for number in range(12)]
ROWS = rows_of(NAMES)
EXPECTED = {name: captions_of(number) for number, name in enumerate(NAMES)}


def as_folder(root: Path) -> Path:
    """A folder with its pictures in two subfolders, each with metadata of its own."""
    for half, kind in ((0, "jsonl"), (1, "csv")):
        folder = root / "folder" / f"part{half}"
        folder.mkdir(parents=True)
        rows = [row for row in ROWS if int(row[0][7:10]) % 2 == half]
        for name, _ in rows:
            shutil.copy(root / name, folder / Path(name).name)
        rows = [(Path(name).name, caption) for name, caption in rows]
        if kind == "csv":
            write_csv(folder / "metadata.csv", rows, ("file_name", "text"))
        else:
            lines = [{"file_name": name, "text": caption} for name, caption in rows]
            write_jsonl(folder / "metadata.jsonl", lines)
    return root / "folder"


def as_tars(root: Path) -> Path:
    """Two archives; captions of an image stand in its JSON."""
    (root / "tars").mkdir()
    for half in range(2):
        files = {}
        for number in range(6 * half, 6 * half + 6):
            files[f"{number:03}.png"] = (root / NAMES[number]).read_bytes()
            files[f"{number:03}.json"] = json.dumps({"caption": captions_of(number)}).encode()
        write_tar(root / "tars" / f"shard{half}.tar", files)
    return root / "tars"


def as_saved(root: Path) -> Path:
    """A data set in a directory; pictures lie in its table, captions in a list column."""
    rows = {"image": [str(root / name) for name in NAMES], "captions": list(EXPECTED.values())}
    table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    table.select(range(11, -1, -1)).save_to_disk(root / "saved")
    return root / "saved"


def as_parquet(root: Path) -> Path:
    """A directory of Parquet files, with the bytes of the picture in each row of a caption."""
    (root / "parquet").mkdir()
    for part in range(2):
        rows = ROWS[part::2]
        content = [{"bytes": (root / name).read_bytes(), "path": name} for name, _ in rows]
        frame = pandas.DataFrame({"image": content, "caption": [caption for _, caption in rows]})
        frame.to_parquet(root / "parquet" / f"{part}.parquet")
    return root / "parquet"


SOURCES = {
    "csv": lambda root: write_csv(root / "pairs.csv", ROWS),
    "tsv": lambda root: write_csv(root / "pairs.tsv", ROWS, separator="\t"),
    "jsonl": lambda root: write_jsonl(
        root / "pairs.jsonl", [{"image": name, "caption": own} for name, own in EXPECTED.items()]
    ),
    "parquet": as_parquet,
    "webdataset": as_tars,
    "folder": as_folder,
    "saved": as_saved,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_gives_the_same_pairs(root, kind):
    found = imported(root, SOURCES[kind](root), split=SHARES)
    content, pairs = found.files, found.pairs
    assert content["dataset.json"]["source"]["kind"] == kind
    captions = len(content["train_caps.txt"])
    assert content["dataset.json"]["splits"]["train"] == {"images": 6, "captions": captions}
    by_number = {int(Path(name).stem): captions for name, captions in pairs.items()}
    assert {number: sorted(own) for number, own in by_number.items()} == {
        number: sorted(captions_of(number)) for number in range(12)
    }
    if kind != "parquet":  # where the rows of an image lie in two files
        assert all(own == captions_of(number) for number, own in by_number.items())
    if kind in ("csv", "tsv", "jsonl"):
        assert set(pairs) == set(NAMES)
    for split in ("train", "dev", "test"):
        ids = content[f"{split}_ids.txt"]
        numbers = [int(Path(name).stem) for name in ids]
        expected = PixelEncoder().encode_images([picture(number) for number in numbers])
        np.testing.assert_array_equal(content[f"{split}_ims.npy"], expected)
        captions = PixelEncoder().encode_captions(content[f"{split}_caps.txt"])[0]
        np.testing.assert_array_equal(content[f"{split}_caps.npy"], captions)
        assert content[f"{split}_ims.npy"].dtype == np.float16


def test_a_split_does_not_depend_on_the_kind_of_source(root):
    first, second = (imported(root, SOURCES[kind](root), split=SHARES) for kind in ("csv", "saved"))
    for split in ("train", "dev", "test"):
        stems = [{Path(n).stem for n in each.files[f"{split}_ids.txt"]} for each in (first, second)]
        assert stems[0] == stems[1]
    other = imported(root, SOURCES["tsv"](root), split=SHARES, seed=1)
    assert other.files["train_ids.txt"] != first.files["train_ids.txt"]


def test_tokens_are_sets_with_their_lengths(root):
    content = imported(root, SOURCES["csv"](root), split=SHARES, tokens="patches").files
    captions = content["train_caps.txt"]
    lengths = np.array([min(5, len(caption.split())) for caption in captions])
    np.testing.assert_array_equal(content["train_lengths.npy"], lengths)
    assert content["train_ims.npy"].shape == (6, 16, 3)
    vectors, _ = PixelEncoder("patches").encode_captions(captions)
    np.testing.assert_array_equal(content["train_caps.npy"][:, : vectors.shape[1]], vectors)
    own = content["dataset.json"]["captions"]
    whole = sum(len(caption.split()) > 5 for own in EXPECTED.values() for caption in own)
    assert (own["kind"], own["cut"], own["vectors"], own["dimensions"]) == ("tokens", whole, 5, 26)


@pytest.mark.parametrize("with_table", [False, True])
def test_arrays_are_dealt_out(root, with_table):
    """With a table, in the order of its images and of its rows; a broken row is left out."""
    rng = np.random.default_rng(0)
    rows = [*ROWS[:4], ("images/099.png", ""), *ROWS[4:]] if with_table else ROWS
    captions = rng.normal(size=(len(rows), 7))
    images = rng.normal(size=(12 + with_table, 2, 5)).astype(np.float32)
    np.save(root / "i.npy", images)
    np.save(root / "c.npy", captions)
    source = write_csv(root / "pairs.csv", rows) if with_table else ""
    vectors = {"image_vectors": str(root / "i.npy"), "caption_vectors": str(root / "c.npy")}
    content = imported(root, source, split=SHARES, max_rejected=0.05, **vectors).files
    seen = 0
    order = list(dict.fromkeys(name for name, _ in rows))
    for split in ("train", "dev", "test"):
        ids = content[f"{split}_ids.txt"]
        at = [order.index(name) if with_table else int(name) for name in ids]
        np.testing.assert_array_equal(content[f"{split}_ims.npy"], images[at])
        for place, row in enumerate(content[f"{split}_pairs.npy"]):
            vector = content[f"{split}_caps.npy"][place]
            [found] = np.flatnonzero((captions == vector).all(axis=1))
            if with_table:
                assert rows[found] == (ids[row], content[f"{split}_caps.txt"][place])
            else:
                assert found // 2 == int(ids[row])
            seen += 1
    assert seen == len(ROWS)
    assert ("train_caps.txt" in content) == with_table
    assert content["dataset.json"]["rejected"] == ({"empty caption": 1} if with_table else {})


def test_the_split_of_a_table_is_kept(root):
    splits = ["train"] * 5 + ["restval"] + ["val"] * 3 + ["Test"] * 3
    rows = [(name, caption, splits[NAMES.index(name)]) for name, caption in ROWS]
    source = write_csv(root / "pairs.csv", rows, ("filename", "caption", "split"))
    found = imported(root, source)
    assert [found.files[f"{split}_ids.txt"] for split in ("train", "dev", "test")] == [
        *(NAMES[:6], NAMES[6:9], NAMES[9:])
    ]
    assert found.record["split"] == {"by": "source"}
    dealt = imported(root, source, split=SHARES)  # --split takes precedence
    assert dealt.record["split"]["shares"] == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed"])
def test_a_parquet_file_of_names_and_lists(root, kind):
    """Names may be categories; a list may be missing, empty or of a fixed length."""
    text = pa.string()
    form = {"list": pa.list_(text), "large_list": pa.large_list(text), "fixed": pa.list_(text, 2)}
    captions = [[f"ein Würfel {n}", f"一只狗 {n}"] for n in range(12)]
    cells = [*captions[:11], None]
    if kind != "fixed":
        cells[0] = []
    rows = {"image": pa.array(NAMES).dictionary_encode(), "captions": pa.array(cells, form[kind])}
    parquet.write_table(pa.table(rows), root / "a.parquet")
    found = imported(root, "a.parquet", max_rejected=0.2)
    kept = range(11) if kind == "fixed" else range(1, 11)
    assert found.pairs == {NAMES[n]: captions[n] for n in kept}
    lost = [number for number in range(12) if number not in kept]
    assert found.rejected == [f"{number + 1},{NAMES[number]},no caption" for number in lost]


def test_columns_are_found_or_named(root):
    header = ("caption_de", "path", "caption_en")
    rows = [(f"de {name}", name, f"en {name}") for name in NAMES]
    source = write_csv(root / "pairs.csv", rows, header)
    with pytest.raises(ConfigError, match="caption_de"):
        imported(root, source)
    found = imported(root, source, caption_columns=("caption_en", "caption_de"))
    assert found.pairs[NAMES[3]] == [f"en {NAMES[3]}", f"de {NAMES[3]}"]
    with pytest.raises(ConfigError, match=r"img.*caption_de, path, caption_en"):
        imported(root, source, image_column="img")


def test_what_cannot_be_read_says_so(root):
    (root / "empty").mkdir()
    cases = ["none.csv", "images/000.png", "empty", "none.tsv", "open.csv", "a.tar", "a.parquet"]
    write_csv(root / "none.tsv", [])
    (root / "open.csv").write_text('image,caption\na,"b\n')  # no such picture
    torn = write_tar(root / "a.tar", {"a.png": b"x" * 999}).read_bytes()[:600]
    (root / "a.tar").write_bytes(torn)
    (root / "a.parquet").write_bytes(b"PAR1")
    for ending in ("csv", "txt", "jsonl", "json"):
        for text in ("", "\n \n"):
            cases.append(f"{len(text)}.{ending}")
            (root / cases[-1]).write_text(text)
    for source in cases:
        with pytest.raises(DataError, match=re.escape(str(root / source))):
            imported(root, source)
    (root / "wide.csv").write_text("image,caption\na,b,c\n")
    with pytest.raises(DataError, match=r"1 of 1 rows.*\n.*fields"):
        imported(root, "wide.csv")


SPLIT_NAMES = {
    0: "train Training restval train2014 trainval coco_karpathy_train",
    1: "val2017 VALID validation_matched dev-clean minival valSplit train/val",
    2: "test_karpathy testA TestSet test-dev data/test-00000-of-00001",
    -1: "unsupervised latest interval",
}


def test_names_of_splits():
    for split, names in SPLIT_NAMES.items():
        for name in names.split():
            assert split_number(name) == split, name
    assert split_number("") == -1


def test_splits_of_other_names_and_of_unknown_ones(root):
    parts = {}
    for number, split in enumerate(("train", "val2017", "test_karpathy", "extra")):
        names = NAMES[3 * number : 3 * number + 3]
        rows = {"image": [str(root / n) for n in names], "text": [f"text of {n}" for n in names]}
        parts[split] = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    datasets.DatasetDict(parts).save_to_disk(root / "saved")
    with pytest.raises(DataError, match=r"unknown split.*extra.*--split"):
        imported(root, "saved")
    found = imported(root, "saved", max_rejected=0.25)
    for at, split in ((3, "dev"), (6, "test")):
        expected = [f"text of {name}" for name in NAMES[at : at + 3]]
        assert found.files[f"{split}_caps.txt"] == expected
    assert found.record["rows"] == {"read": 12, "captions": 12, "written": 9, "rejected": 3}


@pytest.mark.parametrize("kind", ["saved", "parquet"])
def test_classes_become_their_names(root, kind):
    classes = datasets.ClassLabel(names=["a red fox", "a blue bird"])
    rows = {"image": NAMES, "label": [n % 2 for n in range(12)], "text": [0, 1, None, -1] * 3}
    table = datasets.Dataset.from_dict(rows).cast_column("label", classes)
    table = table.cast_column("text", classes)
    source = root / ("saved" if kind == "saved" else "a.parquet")
    if kind == "saved":
        table.save_to_disk(source)
    else:
        table.to_parquet(source)
    pairs = imported(root, source, pictures=str(root), caption_columns=("label",)).pairs
    assert pairs == {name: [classes.names[n % 2]] for n, name in enumerate(NAMES)}
    pairs = imported(root, source, pictures=str(root), max_rejected=0.5).pairs
    assert pairs == {name: [classes.names[n % 4]] for n, name in enumerate(NAMES) if n % 4 < 2}


HIDDEN = [".ipynb_checkpoints/{}", "__MACOSX/._{}", "._{}", "part/@eaDir/{}", ".git/a/{}"]


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "samples", "tar", "metadata", "pattern"])
def test_hidden_files_are_not_read(root, kind, hidden):
    """Programs keep older captions in them; the source itself may lie in a hidden one."""
    directory = root / ".mine" / "source"
    name = {"csv": "pairs.csv", "jsonl": "a.jsonl", "metadata": "metadata.csv"}.get(kind, "b.csv")
    for place, word in (("{}", "new"), (hidden, "older")):
        names = [place.format(f"{number:03}.png") for number in range(len(NAMES))]
        texts = [f"{word} {number}" for number in range(len(NAMES))]
        table = directory / place.format(name)
        table.parent.mkdir(parents=True, exist_ok=True)
        if kind in ("samples", "tar"):
            for number, (own, text) in enumerate(zip(names, texts, strict=True)):
                (directory / own).write_bytes(encoded(picture(number)))
                (directory / own).with_suffix(".txt").write_text(text)
        elif kind == "jsonl":
            rows = zip(NAMES, texts, strict=True)
            write_jsonl(table, [{"image": own, "text": text} for own, text in rows])
        else:
            write_csv(table, zip(NAMES, texts, strict=True))
    source = directory / "*.csv" if kind == "pattern" else directory
    if kind == "tar":
        files = {str(f.relative_to(directory)): f for f in directory.rglob("*.*") if f.is_file()}
        source = write_tar(root / "a.tar", {name: f.read_bytes() for name, f in files.items()})
    found = imported(root, source, pictures=str(root), split="1,0,0").pairs
    captions = sorted(caption for own in found.values() for caption in own)
    assert captions == sorted(f"new {number}" for number in range(len(NAMES)))


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("place", ["json.caption", "info.deep.text", "meta.Caption"])
@pytest.mark.parametrize("kind", ["parquet", "saved", "jsonl"])
def test_fields_of_objects_are_columns(root, kind, place, flag):
    """A picture stays one cell, with its bytes; a row without the object has no caption."""
    first, *inner, last = place.split(".")
    rows = []
    for number, name in enumerate(NAMES):
        value = {last: f"text {number}", "width": number}
        for field in reversed(inner):
            value = {field: value}
        cell = {"bytes": encoded(picture(number)), "path": name} if kind != "jsonl" else name
        rows.append({first: value, "jpg" if place[0] == "j" else "image": cell})
    rows[-1][first] = None
    source = root / f"nested.{kind}"
    if kind == "jsonl":
        write_jsonl(source, rows)
    elif kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(source)
    else:
        datasets.Dataset.from_list(rows).save_to_disk(source)
    named = {"caption_columns": (place,)} if flag else {}
    found = imported(root, source, split="1,0,0", max_rejected=0.1, **named)
    assert found.pairs == {name: [f"text {number}"] for number, name in enumerate(NAMES[:-1])}
    widths = found.files["train_columns.parquet"]
    assert [list(map(int, each)) for each in widths.values()] == [list(range(len(NAMES) - 1))]
