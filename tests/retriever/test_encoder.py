"""Pictures for a model that was trained on features: the encoder of the import makes them."""

import numpy as np
import pytest
from PIL import Image

from l2rm_jax.config import default
from l2rm_jax.errors import DataError
from l2rm_jax.retriever.sources import WITH_ENCODER, encode_pictures, encode_texts, image_source
from l2rm_jax.run import choose_encoder
from tests.importing.made import PixelEncoder, write_pictures

RECORD = {"name": "x", "images": {"model": "x", "weights": "a", "kind": "patches"}}


@pytest.fixture
def asked(monkeypatch) -> list[tuple]:
    """Record the requests to encoders, whose weights are `a`."""
    calls = []

    def make(*call):
        calls.append(call)
        encoder = PixelEncoder("patches")
        monkeypatch.setattr(encoder, "describe", lambda: RECORD, raising=False)
        return encoder

    monkeypatch.setattr(choose_encoder, "make_encoder", make)
    return calls


def test_names_of_files_and_pictures_become_features(tmp_path, asked):
    names = [f"{tmp_path}/{name}" for name in write_pictures(tmp_path, 3)]

    def source(images, ids=None):
        return image_source(
            images,
            None,
            ids,
            default().data,
            encode=lambda given: encode_pictures(RECORD, given, "R"),
        )

    by_name, opened = source(names), source([Image.open(name) for name in names])
    assert asked[0] == ("x", "patches")
    assert by_name.ids == names and opened.ids == ["0", "1", "2"]
    assert source(names[0]).ids == names[:1] and source(np.array(names), "abc").ids == list("abc")
    features = [each.items.rows(np.arange(3)) for each in (by_name, opened)]
    assert features[0].shape == (3, 16, 3) and features[0].std() > 0.05
    np.testing.assert_array_equal(*features)


def test_other_weights_and_no_encoder_are_refused(tmp_path, asked):
    [name] = write_pictures(tmp_path, 1)
    other = {**RECORD, "images": {**RECORD["images"], "weights": "b"}}
    with pytest.raises(DataError, match=r"R: .* x,"):
        encode_pictures(other, [tmp_path / name], "R")
    asked.clear()
    with pytest.raises(DataError, match=r"no\.png: "):
        encode_pictures(RECORD, [tmp_path / "no.png"], "R")
    with pytest.raises(DataError, match="pictures"):
        encode_pictures(None, [tmp_path / name], "R")
    with pytest.raises(DataError, match="text") as found:
        encode_texts({**RECORD, "captions": None}, ["a dog"], "R")
    assert found.value.hint == WITH_ENCODER
    assert not asked  # found before an encoder is loaded
