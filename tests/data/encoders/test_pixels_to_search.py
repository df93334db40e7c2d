"""From a table of photographs to a fine-tuned CLIP that is searched, by the commands of a user."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.errors import StoppedError
from tests.data.encoders import tiny_models
from tests.data.encoders.test_table_to_search import run, write_table
from tests.run.test_resume import asked_to_stop


@pytest.mark.slow
def test_photographs_become_a_fine_tuned_clip(tmp_path, monkeypatch, capsys):
    """A table, pixels, training, a stop, the original removed, resumed, searched."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path)
    tiny_models.save_clip(tmp_path / "clip")
    run("import", "--source=pairs.csv", "--encoder=pixels:clip", "--out=data/mine")
    last = capsys.readouterr().out.splitlines()
    assert "train on them:     l2rm --data=data/mine --pretrained=DIR" in last
    run("check", "--data=data/mine", "--pretrained=clip")
    assert "clip for pictures of 16 pixels" in capsys.readouterr().out
    fields = ("train.epochs=3", "train.warmup_epochs=0", "method=infonce", "loss.learn_scale=true")
    fields += ("optim.text_rate=1", "optim.image_rate=1", "optim.learning_rate=5e-3")
    fields += ("train.checkpoint_steps=2", "data.pixel_crop=0.8")
    words = [f"--config.{field}" for field in fields]
    train = ("train", "--data=data/mine", "--pretrained=clip", "--workdir=runs/mine", *words)
    with asked_to_stop(15, "train_step"), pytest.raises(StoppedError):
        run(*train)
    shutil.rmtree("clip")
    run("train", "--workdir=runs/mine")
    capsys.readouterr()
    config = json.loads(Path("runs/mine/config.json").read_text())
    assert config["model"]["head"] == "vse" and config["model"]["embed_dim"] == 0
    assert config["model"]["image_encoder"] == config["model"]["text_encoder"] == "clip"

    query = "a red dog"
    search = ("search", "--workdir=runs/mine", "--gallery=data/mine:train", f"--query={query}")
    run(*search, "--top_k=3", "--html=page.html")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == query and len(lines) == 4 and "photos/" in lines[1]
    assert Path("page.html").read_text().count("data:image/") == 3

    retriever = l2rm_jax.load("runs/mine")
    gallery = retriever.encode_images("data/mine:train")
    files = [Path("photos", Path(name).name) for name in gallery.ids[:5]]
    again = retriever.encode_images(files)
    np.testing.assert_allclose(again.vectors(), gallery.vectors()[:5], atol=1e-5)
    run("evaluate", "--workdir=runs/mine")
    results = json.loads(Path("runs/mine/results.json").read_text())
    assert f"{results['rsum']:.1f}" in capsys.readouterr().out
