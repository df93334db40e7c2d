"""Mistakes in flags, table or names of pictures are found before an encoder is loaded."""

import sys

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from l2rm_jax.run.choose_encoder import make_encoder
from tests.importing.made import PixelEncoder, write_csv, write_pictures

TABLE = [("images/000.png", "a dog")]


def refused(request: Request) -> ConfigError | DataError:
    """The error of an import that loads no encoder and leaves no directory."""

    def load(*_) -> PixelEncoder:
        raise AssertionError("the encoder was loaded")

    with pytest.raises((ConfigError, DataError)) as caught:
        import_data(request, load)
    assert not request.job.partial.exists() and not request.out.exists()
    return caught.value


def test_mistyped_names_are_corrected(tmp_path):
    table = write_csv(tmp_path / "pairs.csv", TABLE)
    np.save(tmp_path / "images.npy", np.ones((3, 4), np.float32))
    out = tmp_path / "out"
    column = refused(Request(out, str(table), caption_columns=("titel",), encoder="pixels"))
    assert column.hint == "--caption_column=title"
    missing = refused(Request(out, str(table), image_vectors=str(tmp_path / "imags.npy")))
    assert missing.hint == f"--image_vectors={tmp_path / 'images.npy'}"


def test_a_directory_of_two_arrays_has_a_command(tmp_path):
    for name in ("captions", "images"):
        np.save(tmp_path / f"{name}.npy", np.eye(3))
    hint = refused(Request(tmp_path / "out", str(tmp_path), encoder="pixels")).hint
    flags = f"--image_vectors={tmp_path}/images.npy --caption_vectors={tmp_path}/captions.npy"
    assert hint == f"l2rm import {flags} --out=data/mine"


def test_a_mistyped_encoder_is_refused_before_its_library_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "encoders" / "minilm").mkdir(parents=True)
    for library in ("torch", "transformers", "timm"):
        monkeypatch.setitem(sys.modules, library, None)  # an import of it fails
    for name in ("encoders/minilmm", f"{tmp_path}/encoders/minilmm"):
        with pytest.raises(ConfigError, match=f"encoder: {name} ") as found:
            make_encoder(f"timm:resnet50+transformers:{name}")
        right = name.removesuffix("m")
        assert found.value.hint == f"--encoder=timm:resnet50+transformers:{right}"


@pytest.mark.parametrize(
    ("name", "cause", "hint"),
    [
        ("{}", "{root}", "--pictures={root}"),
        ("images/{}", "{above}", "--pictures={above}"),
        ("{stem}", "{root}/000.png", None),
        ("other/{}", "{root}/000.png", None),
        ("x{}", "{table}", "--pictures=DIR"),
        ("https://a.b/{}", "img2dataset", None),
    ],
)
def test_pictures_without_files_are_one_line_with_a_likely_cause(tmp_path, name, cause, hint):
    write_pictures(tmp_path / "photos")
    root = tmp_path / "photos" / "images"
    (tmp_path / "tables").mkdir()
    rows = [(name.format(f"{n:03}.png", stem=f"{n:03}"), f"block {n}") for n in range(12)]
    source = write_csv(tmp_path / "tables" / "pairs.csv", rows)
    error = refused(Request(tmp_path / "out", str(source), encoder="pixels"))
    places = {"root": root, "above": root.parent, "table": source.parent}
    assert str(error).startswith(f"{source}: ") and "\n" not in str(error)
    assert cause.format(**places) in str(error)
    assert error.hint == (hint and hint.format(**places))


def test_an_encoder_that_cannot_be_loaded_leaves_no_directory(root):
    def load(*_) -> PixelEncoder:
        raise DataError("no weights")

    table = write_csv(root / "pairs.csv", TABLE)
    request = Request(root / "out", str(table), encoder="pixels")
    with pytest.raises(DataError, match="no weights"):
        import_data(request, load)
    assert not request.job.partial.exists()
