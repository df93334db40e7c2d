"""Inputs to encode: vectors of every library, texts, and pictures by the encoder of the import."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from l2rm_jax.config import default
from l2rm_jax.data.files import open_array
from l2rm_jax.errors import DataError
from l2rm_jax.retriever.sources import (
    WITH_ENCODER,
    caption_source,
    encode_pictures,
    encode_texts,
    image_source,
)
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


ROWS, SIZE = 5, 3
X = np.random.default_rng(0).normal(size=(ROWS, SIZE)).astype(np.float32)


def of(library: str, make) -> object:
    return make(pytest.importorskip(library))


FORMS = {
    "jax": lambda: jnp.asarray(X),
    "jax bfloat16": lambda: jnp.asarray(X, jnp.bfloat16),
    "list of arrays": lambda: list(X),
    "list of lists": X.tolist,
    "tuples": lambda: tuple(map(tuple, X.tolist())),
    "generator": lambda: (row for row in X),
    "float16": lambda: X.astype(np.float16),
    "float64": lambda: X.astype(np.float64),
    "bfloat16": lambda: X.astype(ml_dtypes.bfloat16),
    "columns first": lambda: np.asfortranarray(X),
    "pandas": lambda: pd.Series(list(X), index=range(7, 7 + ROWS)),
    "pandas lists": lambda: pd.Series(X.tolist()),
    "frame": lambda: pd.DataFrame(X),
    "pyarrow": lambda: pa.array(X.tolist()),
    "polars": lambda: of("polars", lambda polars: polars.Series(X.tolist())),
    "torch": lambda: of("torch", lambda torch: torch.tensor(X, requires_grad=True)),
    "torch bfloat16": lambda: of("torch", lambda torch: torch.tensor(X).bfloat16()),
    "list of torch": lambda: of("torch", lambda torch: list(torch.tensor(X))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("side", ["images", "captions"])
def test_vectors_of_every_kind_are_taken(form, side):
    values = FORMS[form]()
    if side == "captions":
        source = caption_source(values, None)
    else:
        source = image_source(values, None, None, default().data)
    found = source.items.rows(np.arange(ROWS))[:, 0]
    assert found.dtype == np.float32
    assert np.abs(found - X).max() < (0.02 if "bfloat16" in form else 1e-3)


@pytest.mark.parametrize(
    "texts",
    [["a", "b"], ("a", "b"), np.array(["a", "b"]), pd.Series(["a", "b"]), pa.array(["a", "b"])],
)
def test_texts_of_every_kind_stay_texts(texts):
    assert caption_source(texts, None).items == ["a", "b"]


@pytest.mark.parametrize("values", [[], [[1.0, 2.0], [1.0]], ["a", 1], X[0], np.eye(3, dtype=int)])
def test_other_values_are_one_error_that_names_the_captions(values):
    with pytest.raises(DataError, match="captions: found"):
        caption_source(values, None)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_a_file_of_types_that_numpy_does_not_know_says_how_to_save_it(tmp_path, name):
    np.save(tmp_path / "x.npy", X.astype(getattr(ml_dtypes, name)))
    with pytest.raises(DataError, match=r"x\.npy: found \|V[12] \[5, 3\].*bfloat16.*float32"):
        open_array(tmp_path / "x.npy")
