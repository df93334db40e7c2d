"""Embeddings as input: training with L2RM, two-stage evaluation, and result tables."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.evaluation.recall import DIRECTIONS
from l2rm_jax.train import train
from tests import tiny
from tests.run.tiny_runs import one_device

pytestmark = [pytest.mark.usefixtures("shared_programs"), pytest.mark.slow]
SIZES = {"train": 40, "dev": 10, "test": 12}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """One vector an image, and two captions of 1 to 3 vectors, generated from a common latent."""
    path = tmp_path_factory.mktemp("vectors")
    rng = np.random.default_rng(0)
    to_image, to_caption = rng.normal(size=(2, 6, 16)).astype(np.float32)
    for split, images in SIZES.items():
        cause = rng.normal(size=(images, 6)).astype(np.float32)
        noise = rng.normal(size=(2 * images, 3, 16)).astype(np.float32)
        np.save(path / f"{split}_ims.npy", cause @ to_image)
        captions = (cause @ to_caption).repeat(2, axis=0)[:, None] + 0.7 * noise
        np.save(path / f"{split}_caps.npy", captions)
        np.save(path / f"{split}_lengths.npy", np.arange(2 * images) % 3 + 1)
    return path


def tiny_config(directory: Path, method: str, **train_fields):
    config = defaults.default()
    config.method, config.model.head = method, "vse"
    config.data.name, config.data.path = "vectors", str(directory)
    config.mismatch.rate = 0.2
    config.model.update(tiny.MODEL, embed_dim=16, dropout=0.0)
    config.optim.learning_rate, config.optim.grad_clip = 0.02, 100.0
    config.train.update(batch_size=16, warmup_epochs=0, **train_fields)
    return config


@pytest.fixture(scope="module")
def proposer(directory, tmp_path_factory) -> tuple[Path, dict]:
    workdir = tmp_path_factory.mktemp("proposer")
    return workdir, train(tiny_config(directory, "l2rm", epochs=4), workdir, one_device())


@pytest.fixture(scope="module")
def ranker(directory, tmp_path_factory) -> tuple[Path, dict]:
    workdir = tmp_path_factory.mktemp("ranker")
    return workdir, train(tiny_config(directory, "infonce", epochs=1), workdir, one_device())


def test_a_run_learns_from_vectors(proposer):
    workdir, results = proposer
    assert results["rsum"] > 400  # chance is 233
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "epoch"][-1]
    assert last["matched"] + last["mismatched"] == 80 and last["moved_mass"] > 0
    assert not (workdir / "vocabulary.json").exists()


def test_two_stages(proposer, ranker):
    """One run and an ensemble; with all candidates proposed, the ranking is the full one."""
    (first, _), (second, full) = proposer, ranker
    rows = evaluate_runs([second, first], proposer=first, candidates=[24, 2, 0])
    names = [f"{second} (vse)", f"{first} (vse)", "mean of 2 runs"]
    keys = [f"{first} proposes top 24, custom", f"{first} proposes top 2, custom", "custom"]
    assert list(rows) == [*(f"{name}, {key}" for name in names for key in keys), "chance"]
    for name in names:
        everything, some, reference = (rows[f"{name}, {key}"] for key in keys)
        assert everything == {**reference, "i2t_lost": 0.0, "t2i_lost": 0.0}
    alone, some = rows[f"{first} (vse), custom"], rows[f"{second} (vse), {keys[1]}"]
    assert rows[f"{second} (vse), custom"] == full["test"]["custom"]
    assert some["t2i_lost"] > 0
    for way in DIRECTIONS:
        assert some[f"{way}_r10"] == alone[f"{way}_r10"]  # beyond k, the order is the proposer's
        assert some[f"{way}_r1"] <= 100 - some[f"{way}_lost"]
    assert [some[f"{way}_mean"] for way in DIRECTIONS] != [
        alone[f"{way}_mean"] for way in DIRECTIONS
    ]


def test_dual_softmax_is_a_labelled_row(proposer):
    vse, results = proposer
    rows = evaluate_runs([vse], {"evaluation.dual_softmax": 0.1})
    plain, rescored, _ = rows.values()
    names = [f"{vse} (vse), custom", f"{vse} (vse), custom, dual softmax 0.1", "chance"]
    assert list(rows) == names
    assert plain == results["test"]["custom"] and rescored != plain
    with pytest.raises(ConfigError, match="dual_softmax"):
        evaluate_runs([vse], {"evaluation.dual_softmax": 0.1}, proposer=vse, candidates=[3])
    with pytest.raises(ConfigError, match=r"evaluation\.dual_softmax: found -1\.0"):
        evaluate_runs([vse], {"evaluation.dual_softmax": -1.0})


def moved_copy(run: Path, directory: Path, path: Path) -> Path:
    """Copy a run and its data, so that its data have another path."""
    shutil.copytree(directory, path / "data")
    shutil.copytree(run, path / "run")
    config = json.loads((run / "config.json").read_text())
    config["data"]["path"] = str(path / "data")
    (path / "run" / "config.json").write_text(json.dumps(config))
    return path / "run"


def test_a_run_is_evaluated_where_its_data_are_now(directory, proposer, tmp_path):
    run, _ = proposer
    moved = moved_copy(run, directory, tmp_path)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"{tmp_path}/data") as caught:
        evaluate_runs([moved])
    assert caught.value.hint == f"l2rm evaluate --workdir={moved} --data=DIR"
    changes = {"data.path": str(tmp_path / "elsewhere"), "data.test_split": "dev"}
    row, _ = evaluate_runs([moved], changes).values()  # the second one is chance
    assert row["images"] == 10  # of dev; test has 12


def test_runs_on_other_captions_are_not_averaged(directory, proposer, tmp_path):
    """Captions without text all have the same placeholders, so vectors are compared."""
    run, _ = proposer
    other = moved_copy(run, directory, tmp_path)
    rows = evaluate_runs([run, other])  # the same vectors in another place
    assert rows["mean of 2 runs, custom"] == rows[f"{run} (vse), custom"]
    captions = tmp_path / "data" / "test_caps.npy"
    vectors = np.load(captions)
    np.save(captions, vectors[::-1])
    refused = "found other test captions, expected those that the run in .* began with"
    for arguments in ([run, other],), ([other], {}, run, [3]):
        with pytest.raises(ConfigError, match=refused):
            evaluate_runs(*arguments)
    words = "".join(f"caption {row}\n" for row in range(len(vectors)))
    (tmp_path / "data" / "test_caps.txt").write_text(words)
    with pytest.raises(ConfigError, match=r"test captions"):
        evaluate_runs([run, other])
    (tmp_path / "data" / "test_caps.txt").unlink()
    images = np.load(tmp_path / "data" / "test_ims.npy")
    np.save(tmp_path / "data" / "test_ims.npy", images[:8])
    with pytest.raises(ConfigError, match="found other test images"):
        evaluate_runs([run, other])
