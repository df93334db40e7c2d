"""Features of pictures that earlier imports have kept in the user's cache directory."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.importing import Request, encoding_cache
from l2rm_jax.importing.importer import import_data
from l2rm_jax.pretrained.feature_encoder import Encoder, PictureEncoder
from tests.importing.made import PixelEncoder, encoded, picture, write_csv

IMAGES = 12


class Counting(PixelEncoder):
    """An encoder that counts the pictures that it encodes."""

    def __init__(self, key: str = "one"):
        super().__init__()
        self.key, self.count = key, 0

    def image_key(self) -> str:
        return self.key

    def encode_images(self, pictures) -> np.ndarray:
        self.count += len(pictures)
        return super().encode_images(pictures)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A directory with pictures, the first of which is broken, and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(IMAGES):
        Path(f"{number}.png").write_bytes(encoded(picture(number)) if number else b"no picture")
    return tmp_path


def features(out: str, rows=range(IMAGES), key: str = "one") -> tuple[np.ndarray, int]:
    """Import some pictures; return their features, and the number of those encoded."""
    write_csv(Path(f"{out}.csv"), [(f"{row}.png", f"block {row}") for row in rows])
    encoder = Counting(key)
    request = Request(Path(out), f"{out}.csv", encoder="x:y", max_rejected=0.9)
    import_data(request, lambda *_: encoder)
    return np.load(Path(out, "train_ims.npy")), encoder.count


def test_a_later_import_encodes_only_new_pictures(place, caplog):
    few, count = features("few", range(8))
    assert count == 7
    with caplog.at_level(logging.INFO):
        found, count = features("all", [*range(11, -1, -1)])
    assert count == 4 and "7 of 12 encodings from the cache" in caplog.text
    np.testing.assert_array_equal(found[::-1][:7], few)
    again, count = features("again", [*range(11, -1, -1)])
    assert count == 0
    np.testing.assert_array_equal(again, found)
    Path("3.png").write_bytes(Path("5.png").read_bytes())  # the content counts, not the name
    found, count = features("renamed")
    assert count == 0 and (found[2] == found[4]).all()
    _, count = features("other", key="two")
    assert count == IMAGES - 1


def test_a_damaged_or_removed_file_is_encoded_again(place):
    first, _ = features("first")
    [file] = place.glob("cache/l2rm_jax/encodings/one/*.npz")
    file.write_bytes(file.read_bytes()[:300])
    second, count = features("second")
    assert count == IMAGES - 1
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("cache", ["/dev/null", "/proc/none"])
def test_without_a_directory_to_write_to_nothing_is_kept(place, monkeypatch, cache):
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert features("first")[1] == features("second")[1] == IMAGES - 1


def test_the_files_that_were_not_used_for_the_longest_time_are_removed(place, monkeypatch):
    for number, rows in enumerate((range(1, 5), range(5, 8), range(8, 11))):
        features(f"part{number}", rows)
    files = sorted(place.glob("cache/l2rm_jax/encodings/*/*.npz"), key=os.path.getmtime)
    for age, file in enumerate(reversed(files)):
        os.utime(file, (1e9 - age, 1e9 - age))
    features("used", range(1, 5))  # which makes the oldest one the newest
    monkeypatch.setattr(encoding_cache, "MOST", sum(map(os.path.getsize, files)))
    features("last", [11])
    left = set(place.glob("cache/l2rm_jax/encodings/*/*.npz"))
    assert files[0] in left and files[1] not in left and len(left) == 3


def test_the_key_of_an_encoder_is_what_it_computes():
    def key(model="a", weights="w", scale=1) -> str:
        def encode(pictures):
            small = [np.asarray(picture.resize((2, 2)), np.float16) for picture in pictures]
            return scale * np.stack(small).reshape(len(small), -1)

        description = {"model": model, **({"weights": weights} if weights else {})}
        return Encoder("x", PictureEncoder(description, encode), None).image_key()

    assert key() == key(model="b") != ""
    assert len({key(), key(weights="v"), key(scale=2)}) == 3  # 2: other preprocessing
    assert key(weights="") == ""  # of pixels, which cost nothing
