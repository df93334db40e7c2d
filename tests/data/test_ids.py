"""Names of images and captions in the user's own data."""

import pytest

from l2rm_jax.data.ids import read_caption_ids, read_image_ids
from l2rm_jax.errors import DataError


def test_one_line_is_one_image(tmp_path):
    assert read_image_ids(tmp_path, "train", 3) is None
    (tmp_path / "train_ids.txt").write_bytes("\ufeffa/1.jpg\r\nb é.jpg\n\u2028x\n".encode())
    assert read_image_ids(tmp_path, "train", 3) == ["a/1.jpg", "b é.jpg", "\u2028x"]
    with pytest.raises(DataError, match=r"train_ids\.txt: found 3 lines, expected 4, one for each"):
        read_image_ids(tmp_path, "train", 4)
    (tmp_path / "train_ids.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(DataError, match=r"byte 3 is not UTF-8"):
        read_image_ids(tmp_path, "train", 2)


def test_a_table_of_captions_has_their_ids(tmp_path):
    assert read_caption_ids(tmp_path, "dev") is None
    (tmp_path / "dev_caps.tsv").write_text("7\ta dog\n9\ta cat")
    assert read_caption_ids(tmp_path, "dev") == ["7", "9"]
