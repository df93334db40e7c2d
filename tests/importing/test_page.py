"""Commands of the import page, run in their order, and runs on the imported data."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.cli import config_flags
from l2rm_jax.cli.parse import parse
from l2rm_jax.config import flat
from l2rm_jax.errors import DataError
from l2rm_jax.importing import importer
from l2rm_jax.run import choose_encoder
from l2rm_jax.run.config_file import load_config
from tests.importing.made import PixelEncoder, read_directory, rows_of, write_csv, write_pictures
from tests.test_pages import blocks, commands

PAGE = Path(importer.__file__).with_name("README.md")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Directory with all files that the page names."""
    names = write_pictures(tmp_path, 40)
    rows = rows_of(names)
    write_csv(tmp_path / "pairs.csv", rows)
    columns = [(name, caption, f"de {caption}") for name, caption in rows]
    write_csv(tmp_path / "pairs.tsv", columns, ("photo", "english", "deutsch"), "\t")
    shutil.copytree(tmp_path / "images", tmp_path / "photos" / "images")
    write_csv(tmp_path / "photos" / "metadata.csv", rows, ("file_name", "text"))
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    captions = [{"image_id": names.index(name), "caption": caption} for name, caption in rows]
    coco = {"images": images, "annotations": captions}
    shutil.copytree(tmp_path / "images", tmp_path / "holiday")
    (tmp_path / "captions_train2014.json").write_text(json.dumps(coco))
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(40, 6))
    np.save(tmp_path / "images.npy", cause.astype(np.float32))
    owner = [names.index(name) for name, _ in rows]
    np.save(tmp_path / "captions.npy", cause[owner] + 0.1 * rng.normal(size=(len(rows), 6)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choose_encoder, "make_encoder", make_encoder)
    return tmp_path


def make_encoder(spec, tokens):
    return PixelEncoder(words=spec.startswith("timm"))


def test_the_commands_of_the_page(place, capsys):
    ran = []
    for _, *words in (found for script in blocks(PAGE, "bash") for found in commands(script)):
        if words[0] in ("weights", "search"):  # they have tests of their own
            continue
        if words[0] != "import":
            assert parse(words, main.MODES).config.model.head == "linear"
            continue
        ran.append(words)
        shutil.rmtree("data", ignore_errors=True)
        if not any("source" in word for word in words):  # alone, they have even captions
            np.save("captions.npy", np.load("captions.npy")[:40])
        main.main(words)
        [out] = [Path(word.removeprefix("--out=")) for word in words if "--out=" in word]
        flag = "--gallery" if out.name == "holiday" else "--data"
        assert f"{flag}={out}" in capsys.readouterr().out
        record = read_directory(out)["dataset.json"]
        assert sum(size["images"] for size in record["splits"].values()) == 40
        if not any("source" in word for word in words):
            np.save("captions.npy", np.random.default_rng(1).normal(size=(len(rows()), 6)))
    assert len(ran) == 10


def rows() -> list[str]:
    return Path("pairs.csv").read_text().splitlines()[1:]


def imported_arrays() -> None:
    words = "import --image_vectors=images.npy --caption_vectors=captions.npy --source=pairs.csv"
    main.main([*words.split(), "--out=mine"])


def test_a_config_that_fits_is_chosen_and_said(place, caplog):
    imported_arrays()
    with caplog.at_level("INFO", "l2rm_jax"):
        config = parse(["--data=mine"], main.MODES).config
    [message] = caplog.messages
    assert message.startswith("mine: ") and "recipes:linear" in message
    recipe = flat(load_config("recipes:linear"))
    own = {"data.name": "mine", "data.path": "mine", "train.batch_size": 8}
    assert flat(config) == recipe | own
    # A head or a method of one's own needs other sizes.
    changed = parse(["--config.data.path=mine", "--config.model.head=saf"], main.MODES).config
    assert (changed.model.head, changed.method, changed.model.embed_dim) == ("saf", "l2rm", 256)
    changed = parse(["--data=mine", "--config.method=rcl"], main.MODES).config
    assert (changed.model.head, changed.train.draw, changed.train.batch_size) == ("vse", "even", 8)
    named = parse(["--config=embeddings", "--data=mine"], main.MODES).config
    assert named.train.batch_size == 128 and named.model.head == "vse"
    main.main(["import", "--source=pairs.csv", "--encoder=timm:x", "--out=words"])
    words = parse(["--data=words", "--config.method=rcl"], main.MODES).config
    assert words.model.head == "saf"
    (place / "mine" / "dataset.json").write_text("{}")
    with pytest.raises(DataError, match=r"mine/dataset\.json"):
        parse(["--data=mine"], main.MODES)


@pytest.mark.parametrize(
    ("regions", "captions", "head"),
    [
        (36, {"kind": "vectors", "vectors": 1}, "vse"),
        (1, {"kind": "vectors", "vectors": 9}, "saf"),
        (9, {"kind": "tokens", "vectors": 7}, "saf"),
        (1, {"kind": "words"}, "saf"),
    ],
)
def test_the_head_fits_the_captions(regions, captions, head):
    images, sizes = {"vectors": regions, "dimensions": 8}, {"train": {"captions": 600}}
    record = {"images": images, "captions": captions, "splits": sizes}
    fields = config_flags.fitting_fields(record)
    assert (fields["model.head"], fields["train.batch_size"]) == (head, 64)
