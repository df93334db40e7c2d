"""Broken rows and odd pictures: rows that are left out, pictures that are converted."""

import warnings

import numpy as np
import pytest
from PIL import Image

from l2rm_jax.errors import DataError
from l2rm_jax.importing import chunks
from l2rm_jax.importing.importer import describe_import
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.sources import open_source
from tests.importing.made import encoded, imported, picture, write_csv, write_jsonl


def kinds(rejected: list[str]) -> list[str]:
    """Row, image and kind of reason of each rejected row."""
    return [line.replace('"', "").partition(":")[0] for line in rejected]


def test_broken_rows_of_a_csv(root):
    good = [f"images/{n:03}.png,block {n}" for n in range(1, 12)]
    text = [
        "\ufefffilepath,title",
        *good,
        'images/000.png,"a ""quoted"", split\ncaption"',
        "",
        "images/001.png,",
        ",no image",
        "images/001.png,block 1",
        "images/001.png,too,many,fields",
        "images/002.png,",
        "images/absent.png,a caption",
        "https://a.b/c.jpg,a caption",
        f"images/003.png,{'long ' * 2001}",
        "images/004.png,   many\t spaces\u00a0here  ",
        "images/005.png,NA",
        "images/006.png",
    ]
    (root / "pairs.csv").write_bytes("\r\n".join([*text, ""]).encode())
    found = imported(root, "pairs.csv", max_rejected=0.5)
    assert kinds(found.rejected) == [
        "13,images/001.png,empty caption",
        "14,,no image",
        "15,images/001.png,duplicate",
        "16,,too many fields",
        "17,images/002.png,empty caption",
        "18,images/absent.png,no file",
        "19,https",
        "20,images/003.png,long caption",
        "23,images/006.png,empty caption",
    ]
    assert found.record["rejected"] == {
        **{"duplicate": 1, "empty caption": 3, "long caption": 1},
        **{"no file": 2, "no image": 1, "too many fields": 1},
    }
    assert found.pairs["images/000.png"] == ['a "quoted", split caption']
    assert found.pairs["images/004.png"] == ["block 4", "many spaces here"]
    assert found.pairs["images/005.png"] == ["block 5", "NA"]
    assert f"{root}/out/rejected.csv" in describe_import(found.record, found.out)


def test_rows_of_too_many_fields_are_rejected_alone(root):
    """Fields without text at the end are none."""
    rows = ['"images/\n000.png",b', "images/001.png,007,more", "images/002.png,008"]
    text = ["images/000.png,red, more", *rows, 'images/003.png,"a, b",, ']
    (root / "a.csv").write_text("\n".join(["filepath,title", *text, ""]))
    source = open_source(root / "a.csv", root / "cache")
    assert [row for row, _ in source.skipped] == [1, 3]
    assert source.parts[0].table.to_pydict() == {
        "filepath": ["images/\n000.png", "images/002.png", "images/003.png"],
        "title": ["b", "008", "a, b"],
    }


def test_text_of_other_types_and_encodings(root):
    """A column of numbers keeps its zeros; bytes that are not UTF-8 make their row alone wrong."""
    (root / "1").write_bytes(encoded(picture(50)))
    (root / "001").write_bytes(encoded(picture(51)))
    rows = b"".join(b"%s,%s\n" % row for row in [(b"1", b"12"), (b"001", b"007"), (b"1", b"\xff")])
    (root / "a.csv").write_bytes(b"file,text\n" + rows)
    found = imported(root, "a.csv", split="1,0,0", max_rejected=0.4)
    assert kinds(found.rejected) == ["3,1,broken text"]
    assert found.pairs == {"1": ["12"], "001": ["007"]}


def test_broken_lines_of_json(root):
    lines = [
        {"image": "images/000.png", "caption": ["one", " ", "two"]},
        {"image": "images/001.png", "caption": []},
        {"image": None, "caption": "x"},
        {"image": "images/002.png", "caption": "half a \ud83d pair"},
        {"image": "images/003.png", "caption": 7},
        {"caption": "x", "image": "images/004.png", "more": {"deep": 1}},
    ]
    write_jsonl(root / "a.jsonl", lines)
    with (root / "a.jsonl").open("ab") as file:
        file.write(b"{broken\n[1]\n\n")
    found = imported(root, "a.jsonl", max_rejected=0.9, split="1,0,0")
    assert kinds(found.rejected) == [
        *("1,images/000.png,empty caption", "2,images/001.png,no caption", "3,,no image"),
        *("4,images/002.png,broken text", "7,,no JSON", "8,,no JSON object"),
    ]
    assert found.pairs == {
        "images/000.png": ["one", "two"],
        "images/003.png": ["7"],
        "images/004.png": ["x"],
    }


def test_warnings_of_pillow_name_the_picture(root, monkeypatch, caplog):
    def warn(content, open_it=chunks.open_picture):
        warnings.warn("corrupt EXIF data", UserWarning, stacklevel=1)
        return open_it(content)

    monkeypatch.setattr(chunks, "open_picture", warn)
    with caplog.at_level("WARNING", "l2rm_jax"):
        imported(root, write_csv(root / "a.csv", [("images/003.png", "x")]))
    assert "images/003.png: corrupt EXIF data" in caplog.messages


def test_broken_pictures_are_listed_and_converted_ones_counted(root):
    whole = encoded(picture(5), "JPEG")
    broken = {
        "empty.png": b"",
        "text.jpg": b"<html>not found</html>",
        "torn.jpg": whole[: len(whole) // 2],
        "float.tif": encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
        "line.png": encoded(Image.new("RGB", (2000, 1))),
    }
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = {"save_all": True, "append_images": [picture(7)]}
    odd = {"a.gif": encoded(picture(6), "GIF", **frames)}
    odd["turned.png"] = encoded(picture(8), exif=exif.tobytes())
    for name, content in {**broken, **odd}.items():
        (root / name).write_bytes(content)
    (root / "directory").mkdir()
    names = [*broken, "directory", *odd]
    rows = [(name, f"caption {n} of {name}") for n in range(2) for name in names]
    found = imported(root, write_csv(root / "a.csv", rows), max_rejected=0.8)
    numbers = [1 + len(names) * n + at for n in range(2) for at in range(6)]
    assert [line.split(",", 2)[:2] for line in found.rejected] == [
        [str(number), names[(number - 1) % len(names)]] for number in numbers
    ]
    assert found.record["rejected"] == {"damaged picture": 8, "extreme shape": 2, "no file": 2}
    converted = found.record["converted"]
    assert converted["turned upright"] == 1 and converted["first frame"] == 1
    assert sorted(found.pairs) == sorted(odd) and found.record["same_content"] == 0
    assert "turned upright 1" in describe_import(found.record, found.out)


def test_the_same_picture_stays_in_one_split(root):
    """Six pictures under three names each: each picture is in one split, whatever the seed."""
    names = []
    for number in range(6):
        for copy in "abc":
            names.append(f"{number}{copy}.png")
            (root / names[-1]).write_bytes(encoded(picture(number)))
    source = write_csv(root / "a.csv", [(name, f"caption of {name}") for name in names])
    for seed in range(4):
        found = imported(root, source, seed=seed, split="0.5,0.2,0.3")
        ids = [found.files[f"{split}_ids.txt"] for split in ("train", "dev", "test")]
        assert [len({name[0] for name in own}) for own in ids] == [3, 1, 2]
        assert found.record["same_content"] == 12
    assert "train split" in describe_import(found.record, found.out)


def test_the_same_picture_in_two_splits_of_a_table(root):
    (root / "copy.png").write_bytes((root / "images/001.png").read_bytes())
    splits = dict.fromkeys([f"images/{n:03}.png" for n in range(12)], "train")
    splits |= {"images/010.png": "dev", "images/011.png": "test", "copy.png": "test"}
    rows = [(name, f"caption of {name}", split) for name, split in splits.items()]
    rows += [("images/000.png", "elsewhere", "test"), ("images/003.png", "nowhere", "unseen")]
    source = write_csv(root / "a.csv", rows, ("image", "caption", "split"))
    assert kinds(imported(root, source, max_rejected=0.5).rejected) == [
        "13,copy.png,same picture",
        "14,images/000.png,another split",
        "15,images/003.png,unknown split",
    ]


def test_too_many_rejections_end_the_import_with_a_line_for_each_kind(root):
    rows = [(f"absent{n}.png", "a caption") for n in range(12)]
    rows += [(f"images/{n:03}.png", "a caption") for n in range(12)]
    source = write_csv(root / "a.csv", rows)
    with pytest.raises(DataError, match="12 of 24 rows") as caught:
        imported(root, source, max_rejected=0.2)
    [_, kind] = str(caught.value).splitlines()
    assert "12 no file" in kind and "absent0.png" in kind
    listed = (root / "out.partial" / "rejected.csv").read_text().splitlines()
    assert len(listed) == 13 and not (root / "out").exists()
    assert not list((root / "out.partial").rglob("*.npz"))  # nothing was encoded
    hint = caught.value.hint.removeprefix("--max_rejected=")
    found = imported(root, source, max_rejected=float(hint))
    assert found.record["rejected"] == {"no file": 12}


def test_an_image_without_a_name_for_lines(root):
    rows = [("images/000.png", "x"), ("images/\n001.png", "y"), ("images/002.png", "z")]
    found = imported(root, write_csv(root / "a.csv", rows), max_rejected=0.4)
    assert [line for line in found.rejected if "line break" in line]
    assert len(found.pairs) == 2


def test_the_list_of_rejected_rows_has_no_nul(tmp_path):
    rejected = Rejected(tmp_path, most=1)
    rejected.add(3, "a\0b.jpg", "no picture: a\0b.jpg")
    rejected.write()
    listed = (tmp_path / "rejected.csv").read_text().splitlines()
    assert listed[1:] == ["3,a\ufffdb.jpg,no picture: a\ufffdb.jpg"]
