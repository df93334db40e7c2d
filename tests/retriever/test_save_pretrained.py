"""A model saved apart from its run is loaded and used without it."""

import shutil

import jax
import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.errors import CheckpointError, ConfigError
from l2rm_jax.run.results import write_results
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


def test_the_card_tells_what_the_model_is(tmp_path):
    workdir, saved = tmp_path / "run", tmp_path / "saved"
    make_run(workdir, "vse", score=False)
    recalls = {f"{side}_r{k}": 10.0 + k for side in ("i2t", "t2i") for k in (1, 5, 10)}
    results = {"true_rate": 0.35, "test": {"custom": {**recalls, "rsum": 92.0}}}
    write_results(workdir, {**results, "versions": {"l2rm_jax": "0.1", "jax": "0.10"}})
    l2rm_jax.load(workdir).save_pretrained(saved)
    card = (saved / "README.md").read_text()
    for row in (
        "# scenes: triplet with the head vse",
        "| data | scenes |",
        "| mismatch protocol | image |",
        "| mismatch rate, asked | 0 |",
        "| mismatch rate, true | 0.35 |",
        "| captions read by | gru |",
        "| validation rSum | - |",
        "| custom | 11.0 | 15.0 | 20.0 | 11.0 | 15.0 | 20.0 | 92.0 |",
        "Versions: l2rm_jax 0.1, jax 0.10.",
    ):
        assert row in card.splitlines(), card
    assert str(tmp_path) not in card
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"saved/model\.safetensors: not the weights of a"):
        l2rm_jax.load(saved)


def test_only_the_model_of_one_run_is_saved(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, "vse", seed=ord(name), score=False)
    both = l2rm_jax.load([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigError, match="expected the model of one run"):
        both.save_pretrained(tmp_path / "both")
