"""Plug-in methods and heads: a run stops, resumes and is evaluated by --workdir alone."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from l2rm_jax import register_head, register_method
from l2rm_jax.config import default, flat
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import METHODS
from l2rm_jax.models import HEADS, make_model
from l2rm_jax.run.config_file import load_config, read_config, write_config
from tests import tiny

ROOT = Path(__file__).resolve().parents[1]
FOCAL, BILINEAR = "l2rm_jax.methods.example.focal", "tests.plugins.bilinear"
FIELDS = {
    "method": "focal",
    "model.head": "bilinear",
    "own.gamma": 1.5,
    **{f"model.{name}": size for name, size in tiny.MODEL.items()},
    "train.epochs": 2,
    "train.log_steps": 1,
    "train.batch_size": 8,
    "data.scenes_train": 20,
    "data.scenes_dev": 6,
    "data.scenes_test": 10,
}
LIMIT = 240  # seconds to wait for a command
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # for commands that run in another directory


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "l2rm_jax.main", *arguments]


def run(workdir: Path, *arguments: str) -> subprocess.CompletedProcess:
    words = command(*arguments, f"--workdir={workdir}")
    return subprocess.run(words, cwd=workdir, env=ENVIRONMENT, capture_output=True, text=True)


def train_and_stop(workdir: Path) -> int:
    """Train, stop after the third step by SIGTERM, and return the exit status."""
    settings = [f"--config.{name}={value}" for name, value in FIELDS.items()]
    settings += [f"--config.plugins={FOCAL}", f"--config.plugins={BILINEAR}"]
    words = command("--config=scenes:quick", *settings, f"--workdir={workdir}")
    process = subprocess.Popen(words, cwd=workdir, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    log, end = workdir / "metrics.jsonl", time.monotonic() + LIMIT
    while not (log.exists() and len(log.read_bytes().splitlines()) >= 3):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    return process.wait(LIMIT)


@pytest.mark.slow
def test_a_run_with_plugins_resumes_and_is_evaluated(tmp_path):
    assert train_and_stop(tmp_path) == 128 + signal.SIGTERM
    assert not (tmp_path / "results.json").exists()
    resumed = run(tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["config"]["own"] == {"gamma": 1.5, "rank": 8}
    assert (results["method"], results["head"]) == ("focal", "bilinear")
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in steps if record["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))  # the resumed run repeats none and skips none
    evaluated = run(tmp_path, "--mode=evaluate")
    assert evaluated.returncode == 0, evaluated.stderr
    assert f"{results['rsum']:.1f}" in evaluated.stdout and "(bilinear)" in evaluated.stdout


def test_settings_become_checked_config_fields():
    config = default([FOCAL, BILINEAR])
    assert config.own.to_dict() == {"gamma": 2.0, "rank": 8}
    assert flat(default()).keys() == {key for key in flat(config) if not key.startswith("own.")}
    with pytest.raises(AttributeError):
        config.own.gama = 1.0
    config.method, config.own.gamma = "focal", -1.0
    with pytest.raises(ConfigError, match=r"own\.gamma: found -1\.0"):
        METHODS["focal"](None, config)
    config.model.head = "bilinear"
    assert make_model(config, vocabulary_size=9).is_product


def test_a_config_without_a_plugin_ignores_the_settings_of_another():
    """A process may hold runs with plug-ins and runs without."""
    assert "rank" in default([BILINEAR]).own
    config = default()
    assert not config.own and make_model(config, vocabulary_size=9).config.model.head == "sgr"


def test_a_config_file_can_name_plugins(tmp_path, monkeypatch):
    lines = ["from l2rm_jax.config import default", "def get_config():", "  config = default()"]
    lines += [f"  config.plugins = ({FOCAL!r},)", "  return config"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    config = load_config(str(tmp_path / "mine.py"), [BILINEAR])
    assert config.plugins == (FOCAL, BILINEAR) and set(config.own) == {"gamma", "rank"}
    write_config(tmp_path, config)
    assert flat(read_config(tmp_path)) == flat(config)


def test_a_package_has_the_settings_of_a_module_imported_before(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("from mine import method")
    lines = ["from l2rm_jax import register_method", "def make(model, config): ..."]
    lines += ['register_method("mine", make, settings={"beta": 3})']
    (tmp_path / "mine" / "method.py").write_text("\n".join(lines))
    monkeypatch.setitem(METHODS, "mine", None)  # is removed after the test
    del METHODS["mine"]
    importlib.import_module("mine.method")
    assert default(["mine"]).own.to_dict() == {"beta": 3} == default(["mine.method"]).own.to_dict()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, r"plugins: .*broken_\w+ "),
        ("import nowhere_at_all", "nowhere_at_all"),
        ("1 / 0", r"broken_\w+ .*ZeroDivisionError"),
        ("def", r"broken_\w+ .*SyntaxError"),
        ("raise SystemExit(0)", r"broken_\w+ .*SystemExit"),
        ("raise KeyboardInterrupt", r"broken_\w+ .*KeyboardInterrupt"),
    ],
)
def test_error_for_a_failed_import_is_one_line(source, message, tmp_path, monkeypatch):
    name = f"broken_{abs(hash(source))}"
    monkeypatch.syspath_prepend(tmp_path)
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(ConfigError, match=message) as caught:
        default([name])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("register", "name", "table"),
    [(register_head, "sgr", HEADS), (register_method, "l2rm", METHODS)],
)
def test_error_for_a_taken_name_names_both_modules(register, name, table):
    own = table[name].__module__
    with pytest.raises(ConfigError, match=rf"{name}.*{__name__}.*{own}"):
        register(name, lambda *_: None)
    assert table[name].__module__ == own


def test_error_for_a_damaged_list_of_plugins(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"plugins": 3}))
    with pytest.raises(ConfigError, match="plugins: found 3"):
        read_config(tmp_path)
