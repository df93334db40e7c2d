"""Sources of every kind, on real files: the same pairs come out of each."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

datasets = pytest.importorskip("datasets", reason="the extra `import` is not installed")

from l2rm_jax.errors import ConfigError, DataError  # noqa: E402
from l2rm_jax.importing import importer  # noqa: E402
from l2rm_jax.importing.importer import import_data  # noqa: E402
from l2rm_jax.importing.request import Request  # noqa: E402
from l2rm_jax.importing.splits import split_number  # noqa: E402
from tests.importing.made import (  # noqa: E402
    PixelEncoder,
    captions_of,
    encoded,
    pairs_by_image,
    picture,
    read_directory,
    rows_of,
    write_csv,
    write_jsonl,
    write_pictures,
    write_tar,
)

SHARES = "0.5,0.25,0.25"


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    """Takes the place of every encoder: its captions stay words if its name says so."""

    def make(request):
        if request.is_encoded:
            return PixelEncoder(request.tokens or None, words=request.encoder == "words")
        return None

    monkeypatch.setattr(importer, "_load_encoder", make)


@pytest.fixture
def root(tmp_path) -> Path:
    write_pictures(tmp_path)
    return tmp_path


NAMES = [f"images/{number:03}.png" for number in range(12)]
ROWS = rows_of(NAMES)
EXPECTED = {name: captions_of(number) for number, name in enumerate(NAMES)}


def imported(root: Path, source: Path | str, out: str = "out", **fields) -> Path:
    settings = {"encoder": "pixels", "split": SHARES, **fields}
    import_data(Request(root / out, str(source), **settings))
    assert not (root / f"{out}.partial").exists()
    return root / out


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
    import pandas

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
    out = imported(root, SOURCES[kind](root))
    content = read_directory(out)
    record = content["dataset.json"]
    assert record["source"]["kind"] == kind
    assert record["splits"]["train"] == {"images": 6, "captions": len(content["train_caps.txt"])}
    pairs = pairs_by_image(out)
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
    first = imported(root, SOURCES["csv"](root), "a")
    second = imported(root, SOURCES["saved"](root), "b")
    for split in ("train", "dev", "test"):
        stems = [
            {Path(name).stem for name in read_directory(out)[f"{split}_ids.txt"]}
            for out in (first, second)
        ]
        assert stems[0] == stems[1]
    other = imported(root, SOURCES["tsv"](root), "c", seed=1)
    assert (other / "train_ids.txt").read_text() != (first / "train_ids.txt").read_text()


def test_tokens_are_sets_with_their_lengths(root):
    content = read_directory(imported(root, SOURCES["csv"](root), tokens="patches"))
    captions = content["train_caps.txt"]
    lengths = np.array([min(5, len(caption.split())) for caption in captions])
    np.testing.assert_array_equal(content["train_lengths.npy"], lengths)
    assert content["train_ims.npy"].shape == (6, 16, 3)
    vectors, _ = PixelEncoder("patches").encode_captions(captions)
    np.testing.assert_array_equal(content["train_caps.npy"][:, : vectors.shape[1]], vectors)
    own = content["dataset.json"]["captions"]
    whole = sum(len(caption.split()) > 5 for own in EXPECTED.values() for caption in own)
    assert own == {
        "kind": "tokens",
        "cut": whole,
        "vectors": 5,
        "dimensions": 26,
        "dtype": "float16",
    }


def test_captions_may_stay_words(root):
    content = read_directory(imported(root, SOURCES["csv"](root), encoder="words"))
    assert "train_caps.npy" not in content and content["dataset.json"]["captions"] == {
        "kind": "words"
    }


@pytest.mark.parametrize("with_table", [False, True])
def test_arrays_are_dealt_out(root, with_table):
    """With a table, in the order of its images and of its rows; a broken row is left out."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(12, 2, 5)).astype(np.float32)
    rows = [*ROWS[:4], ("images/099.png", ""), *ROWS[4:]] if with_table else ROWS
    captions = rng.normal(size=(len(rows), 7))
    images = rng.normal(size=(13, 2, 5)).astype(np.float32) if with_table else images
    np.save(root / "i.npy", images)
    np.save(root / "c.npy", captions)
    source = write_csv(root / "pairs.csv", rows) if with_table else ""
    vectors = {"image_vectors": str(root / "i.npy"), "caption_vectors": str(root / "c.npy")}
    out = imported(root, source, encoder="", max_rejected=0.05, **vectors)
    content, seen = read_directory(out), 0
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
    out = imported(root, source, split="")
    content = read_directory(out)
    assert content["train_ids.txt"] == NAMES[:6] and content["dev_ids.txt"] == NAMES[6:9]
    assert content["test_ids.txt"] == NAMES[9:] and content["dataset.json"]["split"] == {
        "by": "source"
    }
    dealt = imported(root, source, "dealt")  # --split takes precedence
    assert read_directory(dealt)["dataset.json"]["split"]["shares"] == [0.5, 0.25, 0.25]


def test_names_of_files_say_the_split(root):
    for number, split in enumerate(("train", "validation", "test")):
        rows = [row for row in ROWS if int(row[0][7:10]) % 3 == number]
        write_csv(root / f"{split}-00000-of-00001.csv", rows)
    out = imported(root, root / "*-of-*.csv", split="")
    assert read_directory(out)["dev_ids.txt"] == NAMES[1::3]


def test_the_splits_of_a_saved_data_set_are_kept(root):
    """A directory of several splits; pictures lie in its tables."""
    parts = {}
    for number, split in enumerate(("train", "validation", "test")):
        names = NAMES[4 * number : 4 * number + 4]
        rows = {"image": [str(root / n) for n in names], "text": [f"text of {n}" for n in names]}
        parts[split] = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    datasets.DatasetDict(parts).save_to_disk(root / "saved")
    content = read_directory(imported(root, root / "saved", split=""))
    assert content["dataset.json"]["split"] == {"by": "source"}
    for number, split in enumerate(("train", "dev", "test")):
        names = NAMES[4 * number : 4 * number + 4]
        assert [Path(name).name for name in content[f"{split}_ids.txt"]] == [
            Path(name).name for name in names
        ]
        assert content[f"{split}_caps.txt"] == [f"text of {name}" for name in names]


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed"])
def test_a_parquet_file_of_names_and_lists(root, kind):
    """Names may be categories; a list may be missing, empty or of a fixed length."""
    import pyarrow as pa
    import pyarrow.parquet

    text = pa.string()
    form = {"list": pa.list_(text), "large_list": pa.large_list(text), "fixed": pa.list_(text, 2)}
    captions = [[f"ein Würfel {n}", f"一只狗 {n}"] for n in range(12)]
    cells = [*captions[:11], None]
    if kind != "fixed":
        cells[0] = []
    rows = {"image": pa.array(NAMES).dictionary_encode(), "captions": pa.array(cells, form[kind])}
    pyarrow.parquet.write_table(pa.table(rows), root / "a.parquet")
    out = imported(root, root / "a.parquet", max_rejected=0.2)
    kept = range(11) if kind == "fixed" else range(1, 11)
    assert pairs_by_image(out) == {NAMES[n]: captions[n] for n in kept}
    lost = [number for number in range(12) if number not in kept]
    rejected = [f"{number + 1},{NAMES[number]},no caption" for number in lost]
    assert read_directory(out)["rejected.csv"][1:] == rejected


def test_columns_are_found_or_named(root):
    header = ("caption_de", "path", "caption_en")
    rows = [(f"de {name}", name, f"en {name}") for name in NAMES]
    source = write_csv(root / "pairs.csv", rows, header)
    with pytest.raises(ConfigError, match="none looks like the captions', expected one of the"):
        imported(root, source)
    out = imported(root, source, caption_columns=("caption_en", "caption_de"))
    assert pairs_by_image(out)[NAMES[3]] == [f"en {NAMES[3]}", f"de {NAMES[3]}"]
    with pytest.raises(ConfigError, match=r"no column 'img', .*: caption_de, path, caption_en"):
        imported(root, source, "other", image_column="img")


def test_captions_in_a_list_as_text(root):
    cells = [(name, json.dumps(own)) for name, own in EXPECTED.items()]
    cells[4] = (NAMES[4], '["no list')
    source = write_csv(root / "pairs.csv", cells, ("image", "raw"))
    with pytest.raises(DataError, match=r"row 5: images/004\.png: unreadable list: '"):
        imported(root, source)
    pairs = pairs_by_image(imported(root, source, max_rejected=0.1))
    assert pairs == {name: own for name, own in EXPECTED.items() if name != NAMES[4]}


def test_what_cannot_be_read_says_so(root):
    (root / "empty").mkdir()
    cases = [
        (root / "none.csv", "no such file or directory, expected a .csv"),
        (root / "images/000.png", "a source of unknown kind"),
        (root / "empty", "found no table in this directory"),
        (write_csv(root / "none.tsv", []), "holds no rows"),
    ]
    for name in ("nothing.csv", "nothing.txt", "nothing.jsonl", "nothing.json"):
        for text in ("", "\n \n"):
            (root / f"{len(text)}{name}").write_text(text)
            cases.append((root / f"{len(text)}{name}", "holds no rows"))
    (root / "open.csv").write_text('image,caption\na,"b\n')
    cases.append((root / "open.csv", "none of its 1 pictures has a file; the first: .*/a; "))
    (root / "wide.csv").write_text("image,caption\na,b,c\n")
    message = (
        "1 of 1 rows are rejected.*\n  1 too many fields; the first is row 1: : too many fields: "
        "expected 2 fields, saw 3"
    )
    cases.append((root / "wide.csv", message))
    (root / "torn.tar").write_bytes(
        write_tar(root / "a.tar", {"a.png": b"x" * 999}).read_bytes()[:600]
    )
    cases.append((root / "torn.tar", "cannot be read as webdataset"))
    (root / "torn.parquet").write_bytes(b"PAR1")
    cases.append((root / "torn.parquet", "cannot be read as parquet"))
    for source, message in cases:
        with pytest.raises(DataError, match=message):
            imported(root, source)


def test_names_with_the_letters_of_patterns(root):
    out = imported(root, write_csv(root / "pairs [1].csv", ROWS))
    assert pairs_by_image(out) == EXPECTED


def test_pictures_of_archives_may_be_of_several_types(root):
    files = {}
    for number in range(12):
        ending, kind = (("png", "PNG"), ("jpg", "JPEG"))[number % 2]
        files[f"{number:03}.{ending}"] = encoded(picture(number), kind)
        if number:
            files[f"{number:03}.txt"] = captions_of(number)[0].encode()
    out = imported(root, write_tar(root / "a.tar", files), max_rejected=0.1)
    pictures = [name for name in files if not name.endswith("txt")]
    assert sorted(pairs_by_image(out)) == pictures[1:]
    assert read_directory(out)["rejected.csv"][1:] == ["1,000.png,empty caption"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", 0),
        ("Training", 0),
        ("restval", 0),
        ("train2014", 0),
        ("trainval", 0),
        ("coco_karpathy_train", 0),
        ("val2017", 1),
        ("VALID", 1),
        ("validation_matched", 1),
        ("dev-clean", 1),
        ("minival", 1),
        ("valSplit", 1),
        ("test_karpathy", 2),
        ("testA", 2),
        ("TestSet", 2),
        ("test-dev", 2),
        ("data/test-00000-of-00001", 2),
        ("train/val", 1),
        ("unsupervised", -1),
        ("latest", -1),
        ("interval", -1),
        ("", -1),
    ],
)
def test_names_of_splits(name, split):
    assert split_number(name) == split


def test_splits_of_other_names_and_of_unknown_ones(root):
    parts = {}
    for number, split in enumerate(("train", "val2017", "test_karpathy", "extra")):
        names = NAMES[3 * number : 3 * number + 3]
        rows = {"image": [str(root / n) for n in names], "text": [f"text of {n}" for n in names]}
        parts[split] = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    datasets.DatasetDict(parts).save_to_disk(root / "saved")
    with pytest.raises(DataError, match=r"unknown split: found 'extra', .*; --split deals out"):
        imported(root, root / "saved", split="")
    (root / "out.partial").rename(root / "first")
    content = read_directory(imported(root, root / "saved", split="", max_rejected=0.25))
    assert content["dev_caps.txt"] == [f"text of {name}" for name in NAMES[3:6]]
    assert content["test_caps.txt"] == [f"text of {name}" for name in NAMES[6:9]]
    assert content["dataset.json"]["rows"] == {
        "read": 12,
        "captions": 12,
        "written": 9,
        "rejected": 3,
    }


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
    fields = {"pictures": str(root)}
    pairs = pairs_by_image(imported(root, source, "a", caption_columns=("label",), **fields))
    assert pairs == {name: [classes.names[n % 2]] for n, name in enumerate(NAMES)}
    pairs = pairs_by_image(imported(root, source, "b", max_rejected=0.5, **fields))
    assert pairs == {name: [classes.names[n % 4]] for n, name in enumerate(NAMES) if n % 4 < 2}
