"""Sweeps and their tables; instead of training, the files of a finished run are written."""

import json
import re

import pytest

from experiments.papers import sgraf, sweep, vocabulary
from l2rm_jax import config as defaults
from l2rm_jax.run.config_file import write_config
from tests.experiments.finished_runs import CONFIG, command, read_csv, recalls


def test_a_sweep_trains_what_is_not_finished_and_tables_it(tmp_path, trained, monkeypatch):
    arguments = ["--config", CONFIG, "--out", tmp_path, "--vary", "seed=3,4"]
    command(monkeypatch, sweep, *arguments)
    assert trained == ["l2rm-saf-image0.4-seed3", "l2rm-saf-image0.4-seed4"]
    command(monkeypatch, sweep, *arguments, "--vary", "l2rm.rho=0.1,0.5")
    assert len(trained) == 6 and trained[-1] == "l2rm-saf-image0.4-seed4-l2rm.rho0.5"
    command(monkeypatch, sweep, *arguments)
    assert len(trained) == 6
    rows = read_csv(tmp_path / "results.csv")
    assert [row["seed"] for row in rows] == ["3", "3", "3", "4", "4", "4"]
    assert [row["l2rm.rho"] for row in rows] == ["0.1", "0.1", "0.5"] * 2
    assert "l2rm.epsilon" not in rows[0]  # the same everywhere
    assert rows[0] | {"rsum": "503", "best_epoch": "2", "dev_rsum": "300.0"} == rows[0]
    assert (rows[0]["dev_t2i_r5"], rows[0]["split_accuracy"]) == ("50.0", "0.8")  # best, last


@pytest.mark.parametrize(
    ("settings", "seeds"), [({}, (7, 7)), ({"mismatch.seed": 5}, (7, 5)), ({"seed": 8}, (7, 7))]
)
def test_the_seed_sets_that_of_the_mismatch_too(settings, seeds):
    [(_, config)] = sweep.grid(defaults.get_config(), {"seed": [7]}, settings)
    assert (config.seed, config.mismatch.seed) == seeds


def test_a_grid_is_refused_before_anything_is_trained(tmp_path, trained, monkeypatch):
    other = defaults.get_config()
    other.seed = other.mismatch.seed = 1
    other.train.batch_size = 16
    write_config(tmp_path / "l2rm-saf-image0.4-seed1", other)
    with pytest.raises(SystemExit, match=r"train.batch_size: 16 -> 32"):
        command(monkeypatch, sweep, "--config", CONFIG, "--out", tmp_path, "--vary", "seed=0,1")
    assert not trained


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "l2rm.rh=1"], "config.l2rm.rh: no such field"),
        (["--set", "train=3"], "config.train: no such field"),
        (["--vary", "train.epochs=2,x"], "train.epochs: found 'x', expected a value of type int"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, trained, monkeypatch, arguments, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        command(monkeypatch, sweep, "--config", CONFIG, "--out", tmp_path, *arguments)
    assert not trained and not any(tmp_path.iterdir())


def test_sgraf_trains_both_heads_and_tests_their_mean(tmp_path, trained, monkeypatch, capsys):
    def evaluate(workdirs):
        assert workdirs == [tmp_path / "sgr", tmp_path / "saf"]
        return {"mean of 2 runs": recalls(512.0)}

    monkeypatch.setattr(sgraf, "evaluate_runs", evaluate)
    command(
        monkeypatch, sgraf, "--config", CONFIG, "--workdir", tmp_path, "--set", "mismatch.rate=0.2"
    )
    assert trained == ["sgr", "saf"]
    for head in trained:
        config = json.loads((tmp_path / head / "config.json").read_text())
        assert (config["model"]["head"], config["mismatch"]["rate"]) == (head, 0.2)
    assert "512.0" in capsys.readouterr().out
    assert json.loads((tmp_path / "sgraf.json").read_text())["mean of 2 runs"]["rsum"] == 512.0


def test_the_vocabulary_of_all_training_captions(tmp_path, monkeypatch, capsys):
    (tmp_path / "train_caps.txt").write_text("a rare dog\n" + "a dog runs\n" * 4)
    out = tmp_path / "vocabulary.json"
    command(monkeypatch, vocabulary, tmp_path, "--out", out)
    assert [*json.loads(out.read_text())["word2idx"]][4:] == ["a", "dog", "runs"]
    command(monkeypatch, vocabulary, tmp_path, "--out", out, "--min_count", "1")
    assert "8 words" in capsys.readouterr().out


PLUGIN = "l2rm_jax.methods.example.focal"


@pytest.mark.parametrize(
    "flag", [f"--set=plugins={PLUGIN}", f"--set=plugins=('{PLUGIN}',)", f"--plugins={PLUGIN}"]
)
def test_plugins_of_a_sweep_bring_their_settings(tmp_path, trained, monkeypatch, flag):
    command(
        monkeypatch, sweep, "--config", CONFIG, "--out", tmp_path,
        flag, "--set", "method=focal", "--vary", "own.gamma=1.5,2.5",
    )  # fmt: skip
    assert len(trained) == 2 and all(name.startswith("focal") for name in trained)
