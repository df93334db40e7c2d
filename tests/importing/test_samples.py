"""Archives and directories of samples: endings, dots, order, and the members that flags reach."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing import importer
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.samples import read_tar
from tests.importing.made import (
    PixelEncoder,
    encoded,
    pairs_by_image,
    picture,
    read_directory,
    write_tar,
)

COUNT = 8
PICTURES = [encoded(picture(number)) for number in range(COUNT)]


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    monkeypatch.setattr(importer, "_load_encoder", lambda request: PixelEncoder(words=True))


def imported(root: Path, files: dict[str, bytes], **fields) -> dict[str, list[str]]:
    write_tar(root / "a.tar", files)
    settings = {"encoder": "pixels", "split": "1,0,0", **fields}
    import_data(Request(root / "out", str(root / "a.tar"), **settings))
    return pairs_by_image(root / "out")


def samples(name, picture_ending: str, text_ending: str) -> dict[str, bytes]:
    files = {}
    for number, content in enumerate(PICTURES):
        files[f"{name(number)}.{picture_ending}"] = content
        files[f"{name(number)}.{text_ending}"] = f"text {number}".encode()
    return files


@pytest.mark.parametrize(
    "name",
    [
        lambda number: f"{number:04}",
        lambda number: f"photo.v1.{number:04}",
        lambda number: f"dir.v2/{number}.5",
        lambda number: f"{number}.jpg" if number == 3 else f"{number}",
    ],
)
@pytest.mark.parametrize(
    "endings", [("jpg", "txt"), ("PNG", "TXT"), ("input.jpg", "outputs.txt"), ("webp", "caption")]
)
def test_names_and_endings(tmp_path, name, endings):
    expected = {f"{name(n)}.{endings[0]}": [f"text {n}"] for n in range(COUNT)}
    assert imported(tmp_path, samples(name, *endings)) == expected


def test_members_that_do_not_follow_each_other(tmp_path, caplog):
    files = samples(str, "jpg", "txt")
    apart = {name: files[name] for name in sorted(files, key=lambda name: name[::-1])}
    with caplog.at_level("WARNING", "l2rm_jax"):
        pairs = imported(tmp_path, apart)
    assert pairs == {f"{n}.jpg": [f"text {n}"] for n in range(COUNT)}
    assert "tar --sort=name" in caplog.text


def test_samples_of_the_same_name_are_apart(tmp_path):
    """As where archives were joined; no member takes the place of another."""
    files = samples(str, "jpg", "txt")
    table = read_tar(write_tar(tmp_path / "a.tar", files))
    import tarfile

    with tarfile.open(tmp_path / "b.tar", "w") as joined:
        for _ in range(2):
            with tarfile.open(tmp_path / "a.tar") as one:
                for member in one:
                    joined.addfile(member, one.extractfile(member))
    twice = read_tar(tmp_path / "b.tar")
    assert twice["txt"].to_pylist() == 2 * table["txt"].to_pylist()
    assert twice["__key__"].to_pylist() == 2 * [str(n) for n in range(COUNT)]


def test_flags_reach_any_member(tmp_path):
    files = {}
    for number, content in enumerate(PICTURES):
        files |= {f"{number}.left.jpg": PICTURES[0], f"{number}.right.jpg": content}
        files |= {f"{number}.short.txt": b"short", f"{number}.long.text": f"long {number}".encode()}
        files[f"{number}.meta.json"] = json.dumps({"note": {"de": f"lang {number}"}}).encode()
    flags = {"image_column": "right.jpg", "caption_columns": ("long.text", "META.json.note.de")}
    assert imported(tmp_path, files, **flags) == {
        f"{n}.right.jpg": [f"long {n}", f"lang {n}"] for n in range(COUNT)
    }
    with pytest.raises(ConfigError, match=r"no column 'x', .*left\.jpg, right\.jpg"):
        imported(tmp_path / "..", files, image_column="x")


def test_vectors_of_samples_with_the_same_picture(tmp_path, monkeypatch):
    """Each sample has a vector of its own, even where the pictures are the same."""
    monkeypatch.setattr(importer, "_load_encoder", lambda request: None)
    files = {
        name: PICTURES[0] if name.endswith("jpg") else each
        for name, each in samples(str, "jpg", "txt").items()
    }
    np.save(tmp_path / "v.npy", np.arange(COUNT * 2.0).reshape(COUNT, 2))
    vectors = {"encoder": "", "image_vectors": str(tmp_path / "v.npy")}
    assert imported(tmp_path, files, **vectors) == {str(n): [f"text {n}"] for n in range(COUNT)}
    content = read_directory(tmp_path / "out")
    np.testing.assert_array_equal(content["train_ims.npy"][:, 0], np.arange(0, 2 * COUNT, 2))


def test_texts_that_are_long_or_broken_are_rejected(tmp_path):
    files = samples(str, "jpg", "txt")
    files["0.txt"], files["1.txt"] = b"x " * 10_000, b"caf\xe9"
    del files["2.txt"], files["3.jpg"]
    imported(tmp_path, files, max_rejected=0.6)
    rejected = [
        line.split(",", 2)[2] for line in read_directory(tmp_path / "out")["rejected.csv"][1:]
    ]
    assert [reason.strip('"').partition(":")[0] for reason in rejected] == [
        "long caption",
        "broken text",
        "empty caption",
        "no image",
    ]


APART = {
    "another folder": ("images/{}", "captions/{}"),
    "folders below": ("set/x/images/{}", "set/x/text/en/{}"),
    "above": ("pictures/{}", "{}"),
    "a suffix": ("{}", "{}_caption"),
    "a prefix and a folder": ("img/photo_{}", "txt/caption_{}"),
    "both": ("images/{}-image", "labels/caption {}.en"),
    "words without a boundary": ("img{}", "cap{}"),
}


@pytest.mark.parametrize("ending", ["txt", "caption", "json"])
@pytest.mark.parametrize("place", APART)
@pytest.mark.parametrize("name", ["{:04}", "{}", "dog/{}", "{}9"])
def test_texts_apart_from_their_pictures(tmp_path, name, place, ending, caplog):
    """Also where one picture has no text, and one text no picture."""
    of_picture, of_text = APART[place]
    for number in range(COUNT + 2):
        key = name.format(number + 9)
        image, text = (tmp_path / "set" / f"{each.format(key)}" for each in (of_picture, of_text))
        content = f"text {number}"
        for file in (image, text):
            file.parent.mkdir(parents=True, exist_ok=True)
        if number < COUNT + 1:
            image.with_name(f"{image.name}.png").write_bytes(encoded(picture(number)))
        if number != COUNT:
            content = json.dumps({"caption": content}) if ending == "json" else content
            text.with_name(f"{text.name}.{ending}").write_text(content)
    fields = {"encoder": "pixels", "split": "1,0,0", "max_rejected": 0.2}
    with caplog.at_level("INFO", "l2rm_jax"):
        import_data(Request(tmp_path / "out", str(tmp_path / "set"), **fields))
    keys = [name.format(number + 9) for number in range(COUNT)]
    expected = {f"{of_picture.format(key)}.png": [f"text {n}"] for n, key in enumerate(keys)}
    assert pairs_by_image(tmp_path / "out") == expected
    assert len(read_directory(tmp_path / "out")["rejected.csv"]) == 2
    assert "1 texts have no picture" in caplog.text


def test_texts_whose_names_do_not_agree_are_counted(tmp_path):
    for number, content in enumerate(PICTURES):
        (tmp_path / f"{number}.jpg").write_bytes(content)
        (tmp_path / f"{'abcdefgh'[number]}.txt").write_text("a dog")
    with pytest.raises(DataError, match="8 pictures and 8 texts"):
        import_data(Request(tmp_path / "out", str(tmp_path), encoder="pixels"))


def test_tables_beside_pictures_are_no_texts_of_theirs(tmp_path):
    """As of Flickr30k, with lists of splits."""
    for number, content in enumerate(PICTURES):
        (tmp_path / f"{number}.jpg").write_bytes(content)
    for at, split in enumerate(("train", "val", "test")):
        rows = [f"{n}.jpg\ttext {n}" for n in range(COUNT) if n % 3 == at]
        (tmp_path / f"{split}.txt").write_text("\n".join(["image\tcaption", *rows]))
    import_data(Request(tmp_path / "out", str(tmp_path), encoder="pixels"))
    assert pairs_by_image(tmp_path / "out") == {f"{n}.jpg": [f"text {n}"] for n in range(COUNT)}


def several(number: int, count: int) -> list[str]:
    return [f"text {number} seen {time}" for time in range(count)]


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n", "\n\n"])
@pytest.mark.parametrize("ending", ["txt", "caption"])
@pytest.mark.parametrize("kind", ["tar", "files"])
def test_texts_of_several_lines_are_captions_each(tmp_path, kind, ending, end, caplog):
    """Any number of lines; paragraphs with blank lines between them are one caption."""
    counts = [2 + number % 4 for number in range(COUNT)]
    files = samples(str, "png", ending)
    for number, count in enumerate(counts):
        files[f"{number}.{ending}"] = end.join([*several(number, count), ""]).encode()
    texts = {f"{n}.png": several(n, count) for n, count in enumerate(counts)}
    whole = {name: [" ".join(own)] for name, own in texts.items()}

    def found(**fields):
        if kind == "tar":
            return imported(tmp_path, files, **fields)
        (tmp_path / "files").mkdir(exist_ok=True)
        for name, content in files.items():
            (tmp_path / "files" / name).write_bytes(content)
        fields = {"encoder": "pixels", "split": "1,0,0"} | fields
        out = fields.pop("out", tmp_path / "out")
        import_data(Request(out, str(tmp_path / "files"), **fields))
        return pairs_by_image(out)

    with caplog.at_level("INFO", "l2rm_jax"):
        assert found() == (whole if end == "\n\n" else texts)
    assert ("several lines" in caplog.text) == (end != "\n\n")
    shutil.rmtree(tmp_path / "out")
    assert found(caption_columns=(ending,)) == whole


def test_few_texts_of_several_lines_stay_whole_unless_asked(tmp_path, caplog):
    files = samples(str, "jpg", "txt")
    files["3.txt"] = b"a dog\na cat\n"
    files["6.txt"] = b" \n \n"
    files["4.txt"] = b"A dog that\nruns, and\nbarks."
    with caplog.at_level("WARNING", "l2rm_jax"):
        assert imported(tmp_path, files, max_rejected=0.2)["3.jpg"] == ["a dog a cat"]
    assert "1 of 7 texts" in caplog.text and "--caption_column=txt.lines" in caplog.text
    shutil.rmtree(tmp_path / "out")
    pairs = imported(tmp_path, files, caption_columns=("txt.lines",), max_rejected=0.2)
    assert read_directory(tmp_path / "out")["rejected.csv"][1:] == ["7,6.jpg,empty caption"]
    assert pairs["3.jpg"] == ["a dog", "a cat"] and pairs["5.jpg"] == ["text 5"]
    assert pairs["4.jpg"] == ["A dog that runs, and barks."]
