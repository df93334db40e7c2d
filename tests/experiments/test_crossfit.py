"""Cross-fitting end to end: a data set on disk, with some captions swapped."""

import contextlib
import sys

import numpy as np
import pytest

from experiments.judging import crossfit
from experiments.script import read_rows
from l2rm_jax.judging.detectors import linear


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """120 images of four regions, each with three captions that name the thing in the image."""
    path, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    things = np.array([f"thing{number}" for number in range(8)])
    for split, count in (("train", 120), ("dev", 3), ("test", 3)):
        shown = np.stack([rng.permutation(8)[:3] for _ in range(count)])
        content = np.zeros((count, 1, 8))
        np.put_along_axis(content[:, 0], shown, 3.0, axis=1)
        regions = content + rng.standard_normal((count, 4, 8))
        np.save(path / f"{split}_ims.npy", regions.astype(np.float32))
        lines = [" ".join(rng.permutation(things[row])) for row in shown for _ in range(3)]
        (path / f"{split}_caps.txt").write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_results_of_several_settings(directory, tmp_path, monkeypatch, capsys):
    file = tmp_path / "all.csv"
    arguments = [f"--path={directory}", "--images=0", "--protocol=image,caption", "--rate=0.5"]
    monkeypatch.setattr(crossfit, "FOLDS", 3)
    monkeypatch.setattr(sys, "argv", ["crossfit", *arguments, f"--csv={file}"])
    crossfit.main()
    rows = read_rows(file)
    result = {name: float(value) for name, value in rows[1].items() if name != "protocol"}
    assert result["precision"] > 0.85 and result["auroc"] > 0.9
    assert result["rate_low"] < 0.5 < result["rate_high"] + 0.05
    assert [(row["images"], row["protocol"], row["asked"], row["seed"]) for row in rows] == [
        ("120", "image", "0.5", "0"),
        ("120", "caption", "0.5", "0"),
    ]
    assert "precision" in capsys.readouterr().out


@pytest.mark.slow
def test_a_trained_detector_judges(directory, tmp_path, monkeypatch, capsys):
    """Its requests; `tests/run/test_detector.py` trains some."""

    @contextlib.contextmanager
    def open_detector(config, data, epoch, *, workdir, replicas, train):
        asked = config.judgement.detector, config.judgement.folds, epoch
        assert asked == ("infonce-vse", 4, 0)
        assert config.train.warmup_epochs == 0 and config.train.epochs == 7
        assert workdir.parent == tmp_path and "infonce-vse" in workdir.name
        yield linear

    monkeypatch.setattr(crossfit, "open_detector", open_detector)
    monkeypatch.setattr(crossfit, "DEV_IMAGES", 3)
    flags = ["--detector=infonce-vse", "--folds=4", "--epochs=7", f"--workdir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["crossfit", f"--path={directory}", "--images=0", *flags])
    crossfit.main()
    assert "precision" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--in_sample"])
    with pytest.raises(SystemExit):
        crossfit.main()


@pytest.mark.slow
def test_a_model_that_has_seen_the_pairs_finds_fewer_mismatched(directory, monkeypatch):
    monkeypatch.setattr(crossfit, "FOLDS", 3)
    config = crossfit.make_config(directory, 0, "caption", 0.5, 1)
    train = crossfit.load_train(config)
    seen, unseen = (
        judge(config, train).rate
        for judge in (crossfit.judge_in_sample, crossfit.judge_out_of_fold)
    )
    assert seen.estimate < unseen.estimate and unseen.low < 0.5 < unseen.high + 0.05


def test_calibration_error_equals_a_loop():
    rng = np.random.default_rng(2)
    posterior, matched = rng.random(200), rng.random(200) < 0.3
    posterior[:2] = 0, 1
    total = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        inside = (posterior >= low) & ((posterior < high) | (number == 14))
        total += abs(posterior[inside].sum() - matched[inside].sum())
    assert crossfit.calibration_error(posterior, matched) == pytest.approx(total / 200)
