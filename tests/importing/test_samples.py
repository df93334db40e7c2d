"""Archives and directories of samples: endings, dots, order, and the members that flags reach."""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing.samples import read_tar
from tests.importing.made import Imported, encoded, imported, picture, write_tar

COUNT = 8
PICTURES = [encoded(picture(number)) for number in range(COUNT)]


def imported_tar(root: Path, files: dict[str, bytes], images: int = 0, **fields) -> Imported:
    write_tar(root / "a.tar", files)
    return imported(root, "a.tar", images, split="1,0,0", **fields)


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
    assert imported_tar(tmp_path, samples(name, *endings)).pairs == expected


def test_members_that_do_not_follow_each_other(tmp_path, caplog):
    files = samples(str, "jpg", "txt")
    apart = {name: files[name] for name in sorted(files, key=lambda name: name[::-1])}
    with caplog.at_level("WARNING", "l2rm_jax"):
        found = imported_tar(tmp_path, apart)
    assert found.pairs == {f"{n}.jpg": [f"text {n}"] for n in range(COUNT)}
    assert "tar --sort=name" in caplog.text


def test_samples_of_the_same_name_are_apart(tmp_path):
    """As where archives were joined; no member takes the place of another."""
    archive = write_tar(tmp_path / "a.tar", samples(str, "jpg", "txt"))
    content = archive.read_bytes()[: 4 * COUNT * tarfile.BLOCKSIZE]  # a block per header and file
    archive.write_bytes(2 * content + bytes(2 * tarfile.BLOCKSIZE))
    twice = read_tar(archive)
    assert twice["txt"].to_pylist() == 2 * [f"text {n}" for n in range(COUNT)]
    assert twice["__key__"].to_pylist() == 2 * [str(n) for n in range(COUNT)]


def test_flags_reach_any_member(tmp_path):
    files = {}
    for number, content in enumerate(PICTURES):
        files |= {f"{number}.left.jpg": PICTURES[0], f"{number}.right.jpg": content}
        files |= {f"{number}.short.txt": b"short", f"{number}.long.text": f"long {number}".encode()}
        files[f"{number}.meta.json"] = json.dumps({"note": {"de": f"lang {number}"}}).encode()
    flags = {"image_column": "right.jpg", "caption_columns": ("long.text", "META.json.note.de")}
    expected = {f"{n}.right.jpg": [f"long {n}", f"lang {n}"] for n in range(COUNT)}
    assert imported_tar(tmp_path, files, **flags).pairs == expected
    with pytest.raises(ConfigError, match=r"no column 'x', .*left\.jpg, right\.jpg"):
        imported_tar(tmp_path, files, image_column="x")


def test_vectors_of_samples_with_the_same_picture(tmp_path):
    """Each sample has a vector of its own, even where the pictures are the same."""
    files = {
        name: PICTURES[0] if name.endswith("jpg") else each
        for name, each in samples(str, "jpg", "txt").items()
    }
    found = imported_tar(tmp_path, files, COUNT)
    assert found.pairs == {str(n): [f"text {n}"] for n in range(COUNT)}
    np.testing.assert_array_equal(found.files["train_ims.npy"][:, 0], 3 * np.arange(COUNT))


def test_texts_that_are_long_or_broken_are_rejected(tmp_path):
    files = samples(str, "jpg", "txt")
    files["0.txt"], files["1.txt"] = b"x " * 10_000, b"caf\xe9"
    del files["2.txt"], files["3.jpg"]
    rejected = imported_tar(tmp_path, files, max_rejected=0.6).rejected
    reasons = [line.split(",", 2)[2].strip('"').partition(":")[0] for line in rejected]
    assert reasons == [
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
    with caplog.at_level("INFO", "l2rm_jax"):
        found = imported(tmp_path, "set", split="1,0,0", max_rejected=0.2)
    keys = [name.format(number + 9) for number in range(COUNT)]
    expected = {f"{of_picture.format(key)}.png": [f"text {n}"] for n, key in enumerate(keys)}
    assert found.pairs == expected and len(found.rejected) == 1
    assert "1 texts have no picture" in caplog.text


def test_texts_that_are_of_no_picture(tmp_path):
    """An error; but not of tables, as of Flickr30k, with lists of splits."""
    for number, content in enumerate(PICTURES):
        (tmp_path / f"{number}.jpg").write_bytes(content)
        (tmp_path / f"{'abcdefgh'[number]}.txt").write_text("a dog")
    with pytest.raises(DataError, match="8 pictures and 8 texts"):
        imported(tmp_path, tmp_path)
    for text in tmp_path.glob("*.txt"):
        text.unlink()
    for at, split in enumerate(("train", "val", "test")):
        rows = [f"{n}.jpg\ttext {n}" for n in range(COUNT) if n % 3 == at]
        (tmp_path / f"{split}.txt").write_text("\n".join(["image\tcaption", *rows]))
    expected = {f"{n}.jpg": [f"text {n}"] for n in range(COUNT)}
    assert imported(tmp_path, tmp_path).pairs == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n", "\n\n"])
@pytest.mark.parametrize("ending", ["txt", "caption"])
@pytest.mark.parametrize("kind", ["tar", "files"])
def test_texts_of_several_lines_are_captions_each(tmp_path, kind, ending, end, caplog):
    """Any number of lines; paragraphs with blank lines between them are one caption."""
    files, texts = samples(str, "png", ending), {}
    for number in range(COUNT):
        texts[f"{number}.png"] = [f"text {number} seen {time}" for time in range(2 + number % 4)]
        files[f"{number}.{ending}"] = end.join([*texts[f"{number}.png"], ""]).encode()
    whole = {name: [" ".join(own)] for name, own in texts.items()}
    source = write_tar(tmp_path / "a.tar", files)
    if kind == "files":
        source = tmp_path / "files"
        shutil.unpack_archive(tmp_path / "a.tar", source, filter="data")
    with caplog.at_level("INFO", "l2rm_jax"):
        found = imported(tmp_path, source, split="1,0,0")
    assert found.pairs == (whole if end == "\n\n" else texts)
    assert ("several lines" in caplog.text) == (end != "\n\n")
    assert imported(tmp_path, source, split="1,0,0", caption_columns=(ending,)).pairs == whole


def test_few_texts_of_several_lines_stay_whole_unless_asked(tmp_path, caplog):
    files = samples(str, "jpg", "txt")
    files["3.txt"] = b"a dog\na cat\n"
    files["6.txt"] = b" \n \n"
    files["4.txt"] = b"A dog that\nruns, and\nbarks."
    with caplog.at_level("WARNING", "l2rm_jax"):
        found = imported_tar(tmp_path, files, max_rejected=0.2)
    assert found.pairs["3.jpg"] == ["a dog a cat"]
    assert "1 of 7 texts" in caplog.text and "--caption_column=txt.lines" in caplog.text
    found = imported_tar(tmp_path, files, caption_columns=("txt.lines",), max_rejected=0.2)
    assert found.rejected == ["7,6.jpg,empty caption"]
    assert found.pairs["3.jpg"] == ["a dog", "a cat"] and found.pairs["5.jpg"] == ["text 5"]
    assert found.pairs["4.jpg"] == ["A dog that runs, and barks."]
