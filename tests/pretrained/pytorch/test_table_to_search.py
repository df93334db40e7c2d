"""From a table of photographs to a search that shows them, by the commands that a user types."""

import csv

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.cli.parse import parse
from l2rm_jax.errors import DataError
from l2rm_jax.main import MODES
from tests.pretrained.pytorch import tiny_models

COUNT = 40


def run(*words: str) -> None:
    command = parse(words, MODES)
    command.mode.run(command)


def write_table(directory) -> None:
    """Pictures, and a table with two captions of each."""
    (directory / "photos").mkdir()
    captions = tiny_models.captions(2 * COUNT)
    with (directory / "pairs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filepath", "title"])
        for number, picture in enumerate(tiny_models.pictures(COUNT)):
            picture.save(directory / "photos" / f"{number}.png")
            for caption in captions[2 * number : 2 * number + 2]:
                table.writerow([f"photos/{number}.png", caption])


@pytest.mark.slow
def test_photographs_become_a_searchable_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path)
    model, other = tiny_models.save_clip(tmp_path / "clip"), tmp_path / "siglip"
    run("import", "--source=pairs.csv", f"--encoder=transformers:{model}", "--out=data/mine")
    fields = ("train.epochs=1", "train.warmup_epochs=0", "train.batch_size=16", "method=infonce")
    fields = (*(f"--config.{field}" for field in fields), "--config.model.embed_dim=16")
    run("train", "--data=data/mine", "--workdir=runs/mine", *fields)
    capsys.readouterr()
    query = "a red dog"
    words = ("search", "--workdir=runs/mine", "--gallery=data/mine:train", f"--query={query}")
    run(*words, "--top_k=3", "--html=page.html")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == query and len(lines) == 4 and "photos/" in lines[1]
    assert (tmp_path / "page.html").read_text().count("data:image/") == 3

    # The text is encoded as the training captions were.
    retriever = l2rm_jax.load("runs/mine")
    text = (tmp_path / "data/mine/train_caps.txt").read_text().splitlines()[:4]
    vectors = l2rm_jax.data.RegionFeatures.read(tmp_path / "data/mine/train_caps.npy").head(4)
    by_text, by_vector = map(retriever.encode_captions, (text, vectors))
    gallery = retriever.encode_images("data/mine:train")
    sims = [retriever.similarity(gallery, captions) for captions in (by_text, by_vector)]
    assert abs(sims[0] - sims[1]).max() < 2e-3  # float16 in the file
    # So are pictures.
    by_name = retriever.encode_images(list(gallery.ids))
    np.testing.assert_allclose(by_name.vectors(), gallery.vectors(), atol=1e-5)

    tiny_models.save_siglip(other)
    run("import", "--source=pairs.csv", f"--encoder=transformers:{other}", "--out=data/other")
    with pytest.raises(DataError, match=r"transformers:.*siglip"):
        retriever.encode_images("data/other:train")
