"""Captions of a split, and the names that the user gives to images and captions."""

from pathlib import Path

import pytest

from l2rm_jax.data.captions import read_caption_ids, read_captions, read_image_ids
from l2rm_jax.errors import DataError


def read(path: Path) -> list[str]:
    return read_captions(path, "dev")


def test_line_ends_and_byte_order_mark(tmp_path):
    (tmp_path / "dev_caps.txt").write_bytes("\ufeffA dog\r\n un café \nlast".encode())
    assert read(tmp_path) == ["A dog", "un café", "last"]


def test_unusual_characters_do_not_split_lines(tmp_path):
    (tmp_path / "dev_caps.txt").write_text("a\u2028b\nc\x0bd\n", encoding="utf-8")
    assert len(read(tmp_path)) == 2


def test_second_column_of_a_tsv(tmp_path):
    (tmp_path / "dev_caps.tsv").write_bytes(b'7\t"a dog" runs\r\n9\tsecond\n')
    assert read(tmp_path) == ['"a dog" runs', "second"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev_caps.txt", b"", "txt: found an empty file"),
        ("dev_caps.tsv", b"1\tone\ntwo\n", "tsv:2: found 1 columns"),
        ("dev_caps.tsv", b"1\tone\t1\n", "tsv:1: found 3 columns"),
        ("dev_caps.tsv", b"1\tone\n2\t \n", "tsv:2: found an empty caption"),
        ("dev_caps.txt", b"one\n" + b"x" * 10_001, "txt:2: found 10001 char.*at most 10000"),
        ("other.txt", b"one\n", "no captions of dev"),
    ],
)
def test_unusable_captions_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_two_caption_files_are_refused(tmp_path):
    for suffix in ("txt", "tsv"):
        (tmp_path / f"dev_caps.{suffix}").write_text("1\tone\n")
    with pytest.raises(DataError, match=r"dev_caps\.t"):
        read(tmp_path)


def test_one_line_is_one_image(tmp_path):
    assert read_image_ids(tmp_path, "train", 3) is None
    (tmp_path / "train_ids.txt").write_bytes("\ufeffa/1.jpg\r\nb é.jpg\n\u2028x\n".encode())
    assert read_image_ids(tmp_path, "train", 3) == ["a/1.jpg", "b é.jpg", "\u2028x"]
    with pytest.raises(DataError, match=r"train_ids\.txt: found 3 lines"):
        read_image_ids(tmp_path, "train", 4)
    (tmp_path / "train_ids.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(DataError, match=r"byte 3 is not UTF-8"):
        read_image_ids(tmp_path, "train", 2)


def test_a_table_of_captions_has_their_ids(tmp_path):
    assert read_caption_ids(tmp_path, "dev") is None
    (tmp_path / "dev_caps.tsv").write_text("7\ta dog\n9\ta cat")
    assert read_caption_ids(tmp_path, "dev") == ["7", "9"]
