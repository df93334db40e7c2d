"""The training loop end to end on small data: train, resume, refuse, evaluate."""

import errno
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.papers.rematching import rematch
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, DataError, DivergedError
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.run.config_file import lock_workdir
from l2rm_jax.train import train
from tests.run.tiny_runs import one_device, records
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> tuple[Path, dict, list[str]]:
    """Directory and results of a run, and the batch shapes of each trace of its step."""
    workdir, shapes, real = tmp_path_factory.mktemp("finished"), [], Replicas.map

    def counting(self, step, *, donate=False):
        def counted(*inputs):
            shapes.extend([str(jax.tree.map(np.shape, inputs[1]))] if donate else [])
            return step(*inputs)

        return real(self, counted, donate=donate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replicas, "map", counting)
        results = train(tiny_config(), workdir, one_device())
    return workdir, results, shapes


@pytest.fixture(scope="module")
def finished(traced) -> tuple[Path, dict]:
    return traced[:2]


@pytest.mark.slow
def test_a_step_is_compiled_once_for_each_phase_and_length_of_captions(traced):
    """The run has three epochs, the first of them warm-up."""
    shapes = traced[2]
    assert shapes and len(shapes) == len(set(shapes))
    assert {"warmup" in shape for shape in shapes} == {True, False}


@pytest.mark.slow
def test_files_of_a_run(finished):
    workdir, results = finished
    saved = json.loads((workdir / "results.json").read_text())
    assert saved["rsum"] == pytest.approx(results["rsum"])
    assert saved["test"]["custom"]["rsum"] == pytest.approx(saved["rsum"])
    assert saved["test"]["custom"]["images"] == 10
    assert saved["config"]["data"]["scenes_train"] == 20 and saved["versions"]["jax"]
    epochs = [record for record in records(workdir) if record["kind"] == "epoch"]
    assert [record["epoch"] for record in epochs] == [1, 2, 3]
    for record in records(workdir):
        assert record["protocol"] == "image" and record["rate_asked"] == 0.4
        assert 0.3 <= record["true_rate"] <= 0.4 and record["kept_share"] >= 0.6
    main = epochs[-1]
    assert main["matched"] + main["mismatched"] == 100
    assert {"split_auroc", "cost_spread", "moved_mass", "loss_rematch"} <= main.keys()
    assert main["moved_mass"] == pytest.approx(0.1, rel=1e-4)
    assert np.load(workdir / "mismatch_index.npy").shape == (100,)  # one entry per caption
    assert json.loads((workdir / "vocabulary.json").read_text())["word2idx"]["<unk>"] == 3


@pytest.mark.slow
def test_a_finished_run_only_tests_again(finished):
    workdir, results = finished
    before = records(workdir)
    again = train(tiny_config(), workdir, one_device())
    assert again["test"] == results["test"]
    assert records(workdir) == before


@pytest.mark.slow
def test_mismatched_pairs_of_a_finished_run_are_rematched(finished):
    workdir, _ = finished
    before = {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}
    found = rematch(workdir)
    assert found.alignments
    for alignment in found.alignments:
        assert alignment.plan.shape == (20, 20) and not np.diagonal(alignment.plan).any()
        assert alignment.plan.sum() == pytest.approx(found.config.l2rm.rho, rel=1e-4)
        np.testing.assert_array_equal(alignment.images, found.train.stored_image[alignment.pairs])
    after = {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}
    assert after == before


@pytest.mark.slow
def test_another_config_is_refused_and_nothing_is_touched(finished):
    workdir, _ = finished
    before = {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}
    config = tiny_config()
    config.mismatch.rate = 0.2
    with pytest.raises(ConfigError, match=r"mismatch\.rate: 0\.4 -> 0\.2"):
        train(config, workdir, one_device())
    assert {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()} == before


def test_a_work_directory_in_use_is_refused(tmp_path):
    with lock_workdir(tmp_path), pytest.raises(ConfigError, match="another process"):
        train(tiny_config(), tmp_path, one_device())
    assert not (tmp_path / "config.json").exists() and not (tmp_path / "metrics.jsonl").exists()


def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock_workdir(tmp_path):
        assert "No locks available" in caplog.text


def test_a_refused_config_leaves_no_trace(tmp_path):
    with pytest.raises(DataError, match="100 pairs"):
        train(tiny_config(batch_size=101), tmp_path / "run", one_device())
    for field, value in [("batch_size", 1), ("checkpoint_steps", 0), ("log_steps", 0)]:
        with pytest.raises(ConfigError, match=rf"train\.{field}: found {value}"):
            train(tiny_config(**{field: value}), tmp_path / "run", one_device())
    with pytest.raises(ConfigError, match="epochs"):
        train(tiny_config(warmup_epochs=0, epochs=0), tmp_path / "run", one_device())
    config = tiny_config()
    for protocol, message in [
        ("coco-1k", "coco-1k"),
        ("custom,f30k-1k", "found 10 .*1000 .*f30k-1k"),
    ]:
        config.evaluation.protocol = protocol
        with pytest.raises(ConfigError, match=message):
            train(config, tmp_path / "run", one_device())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_baseline_on_several_devices_and_the_ensemble(finished, tmp_path):
    workdir, results = finished
    other = tmp_path / "pem"
    config = tiny_config("triplet", "pem", warmup_epochs=1, epochs=1)
    baseline = train(config, other, Replicas(jax.devices()[:4]))
    assert baseline["method"] == "triplet" and 0 < baseline["rsum"] < 600
    rows = evaluate_runs([workdir, other])
    assert len(rows) == 4 and list(rows)[-1] == "chance"
    # Scored on all devices here, and on one device at the end of training.
    for path, head, expected in [(workdir, "vse", results), (other, "pem", baseline)]:
        row = rows[f"{path} ({head}), custom"]
        assert row["rsum"] == pytest.approx(expected["rsum"])
    singles = [results["test"]["custom"], baseline["test"]["custom"]]
    assert rows["mean of 2 runs, custom"] not in singles
    with pytest.raises(ConfigError, match=r"5000 .*coco-5k"):
        evaluate_runs([other], {"evaluation.protocol": "coco-5k"})
    with pytest.raises(ConfigError, match=r"mismatch\.rate"):
        evaluate_runs([other], {"mismatch.rate": 0.1})


@pytest.mark.slow
def test_images_with_fewer_regions_train(tmp_path):
    """In the files, the rows after an image's last region are NaN."""
    data, rng = tmp_path / "data", np.random.default_rng(0)
    data.mkdir()
    for split, images in [("train", 8), ("dev", 3), ("test", 5)]:
        features = rng.normal(size=(images, 6, 10)).astype(np.float32)
        counts = rng.integers(1, 7, images)
        features[np.arange(6) >= counts[:, None]] = np.nan
        np.save(data / f"{split}_ims.npy", features)
        np.save(data / f"{split}_regions.npy", counts)
        words = rng.choice(["red", "blue", "dog", "cat", "runs"], (5 * images, 4))
        (data / f"{split}_caps.txt").write_text("\n".join(map(" ".join, words)) + "\n")
    config = tiny_config("infonce", "saf", warmup_epochs=0, epochs=1)
    config.data.name, config.data.path = "mine", str(data)
    results = train(config, tmp_path / "run", one_device())
    assert 0 < results["rsum"] < 600
    assert all(np.isfinite(record.get("loss", 0)) for record in records(tmp_path / "run"))


def write_split(directory: Path, split: str, images: int, captions_per_image: int) -> None:
    """Write random features, and captions of one length, so that one shape is compiled."""
    rng = np.random.default_rng(images)
    directory.mkdir(exist_ok=True)
    np.save(directory / f"{split}_ims.npy", rng.normal(size=(images, 3, 5)).astype(np.float32))
    lines = [" ".join(rng.choice(list("abcdefgh"), 4)) for _ in range(images * captions_per_image)]
    if captions_per_image == 1:
        lines = [f"{number}\t{line}" for number, line in enumerate(lines)]
    suffix = "tsv" if captions_per_image == 1 else "txt"
    (directory / f"{split}_caps.{suffix}").write_text("\n".join(lines) + "\n")


def file_config(directory: Path, images: dict[str, int], captions_per_image: int, **train_fields):
    for split, count in images.items():
        write_split(directory, split, count, captions_per_image)
    config = tiny_config(**train_fields)
    config.data.name, config.data.path, config.data.min_count = "mine", str(directory), 1
    return config


@pytest.mark.slow
def test_a_collapsed_run_warns_once_and_a_diverged_one_stops(tmp_path):
    """Learning rate 10; the hook scores all pairs and at the end sets the parameters to NaN."""
    images = {"train": 5, "dev": 8, "test": 3}
    config = file_config(tmp_path / "data", images, 5, batch_size=7, warmup_epochs=0, epochs=5)
    config.method, config.optim.learning_rate = "triplet", 10.0
    config.model.head = "saf"  # collapses at this rate
    seen = {}

    def hook(run, epoch, recalls):
        seen[epoch] = run.score_pairs(epoch)(lambda state, batch: batch.pair_index)
        if epoch == 4:
            spoilt = jax.tree.map(lambda x: x * np.nan, run.state.params)
            run.state = run.state.replace(params=spoilt)

    workdir = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"nan .*13 .*5"):
        train(config, workdir, one_device(), on_epoch=hook)
    assert sorted(seen) == [1, 2, 3, 4]
    np.testing.assert_array_equal(seen[4], np.arange(25))
    warned = [record for record in records(workdir) if record["kind"] == "warning"]
    signs = [record["sign"] for record in warned]
    assert "flat_loss" in signs and len(set(signs)) == len(signs)
    assert all(record["phase"] == "main" for record in warned)


@pytest.mark.slow
def test_data_smaller_than_a_batch_of_either_kind(tmp_path):
    """Few images with one caption each, odd sizes, no warm-up, a queue longer than the data."""
    images = {"train": 13, "dev": 4, "test": 3}
    config = file_config(tmp_path / "data", images, 1, batch_size=11, warmup_epochs=0, epochs=1)
    config.l2rm.queue_length, config.mismatch.rate = 22, 0.0
    config.model.update(embed_dim=16, word_dim=8, sim_dim=8)  # large enough for a split of both
    workdir = tmp_path / "run"
    results = train(config, workdir, one_device())
    assert results["test"]["custom"]["t2i_r5"] == 100.0
    [epoch] = [record for record in records(workdir) if record["kind"] == "epoch"]
    assert epoch["matched"] + epoch["mismatched"] == 13 and "true_rate" not in epoch
    assert epoch["moved_mass"] == pytest.approx(0.1, rel=1e-4)
    warned = [record for record in records(workdir) if record["kind"] == "warning"]
    assert {"few_matched", "few_mismatched"} <= {record["sign"] for record in warned}
    assert [w["message"] for w in results["warnings"]] == [r["message"] for r in warned]
    assert json.loads((workdir / "results.json").read_text())["warnings"] == results["warnings"]
