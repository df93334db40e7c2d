"""A model saved apart from its run is loaded and used without it."""

import shutil

import jax
import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.errors import CheckpointError, ConfigError
from tests.retriever.runs import make_run
from tests.run import pretrained_runs
from tests.run.tiny_runs import tiny_config

TEXTS = ["a red ball", "two blue squares near a star"]


def vectors(retriever):
    images = retriever.encode_images("scenes:test").vectors()
    return images, retriever.encode_captions(TEXTS).vectors()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "two networks", "pretrained"])
def test_a_saved_model_is_the_same(tmp_path, kind):
    workdir, saved = tmp_path / "run", tmp_path / "saved"
    if kind == "words":
        make_run(workdir, "vse", score=False)
    else:
        config = tiny_config("ncr", "vse") if kind == "two networks" else None
        config = config or pretrained_runs.bert_config(model__adapter_rank=2)
        pretrained_runs.make_run(config, workdir)
    first = l2rm_jax.load(workdir)
    expected = vectors(first)
    first.save_pretrained(saved)
    with pytest.raises(ConfigError, match="saved"):
        first.save_pretrained(saved)
    shutil.rmtree(workdir)
    second = l2rm_jax.load(saved)
    jax.tree.map(np.testing.assert_array_equal, vectors(second), expected)
    assert second.maker.fingerprint == first.maker.fingerprint
    assert second.title == first.title.replace(str(workdir), str(saved))
    second.save_pretrained(tmp_path / "again")
    jax.tree.map(
        np.testing.assert_array_equal, vectors(l2rm_jax.load(tmp_path / "again")), expected
    )
    files = {file.name for file in saved.iterdir()}
    assert files >= {"config.json", "model.safetensors", "README.md"}
    assert ("pretrained" in files) == (kind == "pretrained")
    assert ("vocabulary.json" in files) == (kind != "pretrained")
    (saved / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="not the weights of a saved model"):
        l2rm_jax.load(saved)


@pytest.mark.slow
def test_only_the_model_of_one_run_is_saved(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, "vse", seed=ord(name), score=False)
    both = l2rm_jax.load([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigError, match="one run"):
        both.save_pretrained(tmp_path / "both")
