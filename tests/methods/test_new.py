"""`l2rm new method NAME`: the written test passes, the method trains, wrong names are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from l2rm_jax.cli.parse import parse
from l2rm_jax.errors import ConfigError
from l2rm_jax.main import MODES, main
from l2rm_jax.methods.new import write_method

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "--config=scenes:quick --config.plugins=my_focal --config.method=my_focal"
SMALL = "--config.data.scenes_train=4 --config.data.scenes_dev=2 --config.data.scenes_test=2"
STEPS = "--config.train.batch_size=10 --config.train.warmup_epochs=0 --config.train.epochs=1"


@pytest.mark.slow
def test_a_new_method_passes_its_test_and_trains(tmp_path, monkeypatch):
    def run(*words: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )

    monkeypatch.chdir(tmp_path)
    main(["new", "method", "my_focal"])
    assert {file.name for file in tmp_path.iterdir()} == {"my_focal.py", "test_my_focal.py"}
    assert "3 passed" in run("pytest", "-q", "test_my_focal.py").stdout
    words = f"{TRAIN} {SMALL} {STEPS} --config.own.gamma=1.5 --workdir=run"
    run("l2rm_jax.main", *words.split())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["method"] == "my_focal" and results["config"]["own"] == {"gamma": 1.5}
    log = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [each["step"] for each in map(json.loads, log) if each["kind"] == "step"][-1] == 2


@pytest.mark.parametrize("name", ["", "My", "a-b", "../a", "2x", "class", "l2rm", "json", "numpy"])
def test_names_that_cannot_be_a_method(name, tmp_path):
    with pytest.raises(ConfigError, match="name"):
        write_method(name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("taken", ["mine.py", "test_mine.py"])
def test_a_file_is_never_overwritten(taken, tmp_path):
    (tmp_path / taken).write_text("kept")
    with pytest.raises(ConfigError, match=f"{taken}: exists"):
        write_method("mine", tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("line", ["new", "new method", "new head mine", "new method a b"])
def test_words_that_are_not_method_and_name(line):
    command = parse(line.split(), MODES)
    with pytest.raises(ConfigError, match="expected method NAME"):
        command.mode.run(command)
