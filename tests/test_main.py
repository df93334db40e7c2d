"""Command line: mistakes, configs of the papers, and modes, run as a user runs them."""

import importlib
import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import pytest

from l2rm_jax import config as defaults
from l2rm_jax import main, settings
from l2rm_jax.cli.help import answer
from l2rm_jax.devices.hosts import advise_on_memory
from l2rm_jax.errors import CheckpointError, ConfigError
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.published.checkpoint import read_checkpoint
from l2rm_jax.run.config_file import write_config
from l2rm_jax.run.inputs import check_settings
from l2rm_jax.version import __version__

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Directory to run commands in; it has the configs, but no runs."""
    directory = tmp_path_factory.mktemp("place")
    (directory / "configs").symlink_to(ROOT / "configs")
    return directory


@pytest.fixture
def run(place):
    """Function that runs the command line in a new process."""

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "l2rm_jax.main", *arguments]
        return subprocess.run(command, cwd=place, capture_output=True, text=True)

    return run


MISTAKES = [  # a line, and a part of its message or hint
    ("--config=configs/missing.py", "configs/missing.py"),
    ("--config=configs/scenes.py:slow", "scenes:quick"),
    ("--config.method=l3rm", "\n  try: --config.method=l2rm"),
    ("--config=f30k", "data.path"),
    ("--data=/nonexistent", "/nonexistent"),
    ("--config.data.name=scenes --data=/", "/train_ims.npy"),
    ("evaluate", "\n  try: l2rm evaluate --workdir"),
    ("evaluate --workdir=/nonexistent", "/nonexistent"),
    ("check --workdir=/nonexistent", "/nonexistent"),
    ("audit --data=configs --out=configs", "\n  try: --out=configs-2"),
    ("evaluate --workdir=a --config=f30k", "--config"),
    ("evaluate --workdir=RUN --config.train.epochs=3", "config.train.epochs"),
    ("evaluate --checkpoint=a --workdir=b", "--workdir"),
    ("evaluate --checkpoint=a --proposer=b", "--proposer"),
    ("evaluate --workdir=a --candidates=3", "--proposer"),
    ("evaluate --workdir=a --proposer=b", "--candidates"),
    ("--proposer=a", "l2rm evaluate"),
    ("audit --workdir=RUN --out=a", "run"),
    ("import --source=a.csv", "--out"),
    ("import --out=a", "--source"),
    ("import --out=a --source=b.csv", "--encoder"),
    ("import --out=a --image_vectors=b.npy", "--image_vectors"),
    ("import --out=configs --source=b.csv", "--out"),
    ("import --out=a --source=b.csv --encoder=c --split=1,1,1", "--split"),
    ("import --out=a --image_vectors=b --source=c --encoder=d", "--encoder"),
    ("import --out=a --max_rejected=2 --source=b --encoder=c", "--max_rejected"),
    ("import --out=a --image_vectors=b.npy --caption_vectors=c.npy", "b.npy"),
    ("--hosts=2 --host=0", "--coordinator"),
    ("check --coordinator=auto", "--coordinator"),
    ("--coordinator=auto --hosts=2", "--coordinator=auto"),
    ("--coordinator=10.0.0.1:8476 --hosts=2", "--host"),
    ("--coordinator=localhost:1 --hosts=2 --host=2", "--host"),
    ("--coordinator=auto", "--coordinator=auto"),
]


@pytest.fixture
def refused(place, monkeypatch):
    """Function that runs a command line in this process and returns the lines it ends with."""
    monkeypatch.chdir(place)

    def run(line: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main.main(line.split())
        assert isinstance(ended.value.code, str)  # printed to standard error, with status 1
        return ended.value.code

    return run


# This one is found when the data have been made.
LATE = ("--workdir=/dev/null/run --config=scenes:quick", "/dev/null")
CASES = [pytest.param(*each, id=each[0]) for each in MISTAKES]
CASES.append(pytest.param(*LATE, id=LATE[0], marks=pytest.mark.slow))


@pytest.mark.parametrize(("line", "named"), CASES)
def test_mistakes_end_at_once_with_one_message(refused, tmp_path, line, named):
    write_config(tmp_path / "run", defaults.get_config("quick"))
    lines = refused(line.replace("RUN", str(tmp_path / "run")))
    assert lines.startswith("error: ") and named in lines
    assert len(lines.splitlines()) == 1 + ("\n  try: " in lines)


def test_a_similar_directory_is_suggested_beside_a_list_of_problems(refused):
    assert refused("check --data=config").endswith("\n  try: --data=configs")


def test_a_command_without_words_says_what_it_trains(monkeypatch, caplog):
    started = []
    monkeypatch.setattr("l2rm_jax.train.train", lambda *inputs: started.append(inputs))
    monkeypatch.setattr("l2rm_jax.check.check", lambda config: config.data.name)
    with caplog.at_level("INFO", "l2rm_jax"):
        main.main([])
        main.main(["train", "--data=some/pairs", "--workdir=a"])
        main.main(["check"])
        for mode in ("check", "audit --out=a"):  # a mistyped run is not the built-in data set
            with pytest.raises(SystemExit, match="misspelt"):
                main.main([*mode.split(), "--workdir=misspelt"])
    assert len(caplog.messages) == 2 and all("scenes" in each for each in caplog.messages)
    [(scenes, default_workdir), (pairs, workdir)] = started
    assert scenes.data.name == "scenes" and default_workdir == main.default_workdir(scenes)
    assert pairs.data.name == "pairs" and workdir == "a"


def test_evaluation_is_told_where_the_data_are(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("l2rm_jax.evaluate.evaluate_runs", lambda *inputs: calls.append(inputs))
    monkeypatch.setattr("l2rm_jax.evaluation.recall.recall_table", lambda rows, split: "table")
    line = "evaluate --workdir=a --workdir=b --data=D:dev --config.evaluation.batch_size=2"
    main.main(line.split())
    changes = {"data.path": "D", "data.test_split": "dev", "evaluation.batch_size": 2}
    assert calls == [(["a", "b"], changes, None, [])]
    assert capsys.readouterr().out == "table\n"


@pytest.mark.parametrize(
    ("name", "epochs", "decay", "rate"),
    [("f30k", 30, 15, 2e-4), ("coco", 20, 10, 5e-4), ("cc152k", 40, 20, 2e-4)],
)
def test_published_settings_of_rcl(name, epochs, decay, rate):
    get_config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]
    config = get_config("rcl")
    assert (config.method, config.rcl.loss, config.rcl.negatives) == ("rcl", "log", 0)
    assert (config.train.warmup_epochs, config.train.epochs) == (0, epochs)
    assert (config.optim.decay_epochs, config.optim.learning_rate) == (decay, rate)
    assert (config.loss.tau, config.train.batch_size) == (0.05, 128)
    assert get_config().method == "l2rm"
    with pytest.raises(ConfigError, match=f"{name}:tan"):
        get_config("tan")


@pytest.mark.parametrize("name", ["f30k", "coco"])
@pytest.mark.parametrize(("variant", "images"), [("rcsl", 5000), ("rcsl_500", 500)])
def test_semi_paired_splits_of_rcsl(name, variant, images):
    """Images come from RCSL Tab. 1; sizes and rates from the authors' code."""
    config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"](variant)
    assert (config.data.name, config.method, config.model.head) == (name, "rcsl", "aggregate")
    assert config.mismatch.protocol == "semi_paired" and config.mismatch.paired_images == images
    assert (config.train.warmup_epochs, config.train.epochs) == (25, 15)
    assert (config.train.batch_size, config.rcsl.tau) == (256, 0.03)
    assert (config.optim.learning_rate, config.optim.weight_decay) == (5e-4, 0.01)
    assert config.rcsl.learning_share == (0.2 if name == "coco" else 1.0)


@pytest.mark.parametrize(
    ("name", "rate", "decay", "epochs", "smoothing"),
    [("f30k", 2e-4, 15, 30, 9.0), ("coco", 5e-4, 10, 20, 11.0)],
)
def test_configs_of_scan_and_imram(name, rate, decay, epochs, smoothing):
    """The README of SCAN's public code, and the scripts of IMRAM's."""
    get_config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]
    scan, scan_i2t, imram = map(get_config, settings.SCAN)
    for config in (scan, scan_i2t, imram):
        check_settings(config)
        assert (config.method, config.mismatch.rate, config.loss.margin) == ("triplet", 0.0, 0.2)
        assert (config.optim.learning_rate, config.optim.decay_epochs) == (rate, decay)
        assert (config.train.warmup_epochs, config.train.epochs) == (0, epochs)
        assert (config.train.batch_size, config.model.embed_dim) == (128, 1024)
    assert scan.model.head == scan_i2t.model.head == "cam" and scan.model.matching == "naive"
    assert (scan.cam.direction, scan_i2t.cam.direction) == ("t2i", "i2t")
    assert (imram.model.head, imram.imram.rounds) == ("imram", 3)
    assert imram.imram.smoothing == smoothing


def test_error_without_pytorch_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CheckpointError, match="PyTorch") as caught:
        read_checkpoint("a.pth.tar")
    assert caught.value.hint == "pip install 'l2rm_jax[torch]'"


def test_error_for_a_misspelt_key_names_the_config_file(refused, tmp_path):
    lines = ["from l2rm_jax.config import default", "def get_config():", "  c = default()"]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "  c.data.pth = 'here'", "  return c"]))
    first, second = refused(f"--config={tmp_path / 'mine.py'}").splitlines()
    assert first.startswith(f"error: {tmp_path / 'mine.py'}: config.pth: ")
    assert second == "  try: config.data.path"


def test_error_for_a_config_file_with_a_syntax_error_is_one_line(refused, tmp_path):
    (tmp_path / "mine.py").write_text("def get_config(:")
    [line] = refused(f"--config={tmp_path / 'mine.py'}").splitlines()
    assert line.startswith(f"error: {tmp_path / 'mine.py'}: SyntaxError") and "line 1" in line


@pytest.mark.slow
def test_data_errors_come_before_any_device_is_used_or_file_written(run, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nosuchdevice")  # using a device would fail
    sizes = ["--config.train.batch_size=600", f"--workdir={tmp_path / 'run'}"]
    done = run("--config=configs/scenes.py:quick", *sizes)
    assert done.returncode == 1
    assert "500" in done.stderr and "600" in done.stderr and "nosuchdevice" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_error_for_a_device_out_of_memory_names_what_would_help(refused, monkeypatch):
    def train(command):
        with advise_on_memory(
            "training", ["--config.train.batch_size=32", "--config.model.chunk=1"]
        ):
            return jnp.zeros((2**20, 2**28)) + 1

    monkeypatch.setattr(
        main, "MODES", [next(m for m in main.MODES if m.name == "train")._replace(run=train)]
    )
    first, second = refused("").splitlines()
    assert first.startswith("error: RESOURCE_EXHAUSTED") and "training" in first
    assert second == "  try: --config.train.batch_size=32"


@pytest.mark.parametrize("name", ["f30k", "coco"])
def test_config_of_omit(name):
    """OMIT Sec. 4.1: ten epochs at the full learning rate, then five at a tenth of it."""
    config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]("omit")
    assert config.data.name == name and config.evaluation.protocol.startswith(name)
    assert (config.method, config.model.head, config.mismatch.rate) == ("triplet", "omit", 0.0)
    optim, train = config.optim, config.train
    assert (optim.learning_rate, optim.weight_decay, train.batch_size) == (5e-4, 5e-4, 384)
    rate = Optimiser(optim.learning_rate, optim.decay_epochs, (train.warmup_epochs,)).rate
    rates = [float(rate(jnp.int32(epoch))) for epoch in range(train.warmup_epochs + train.epochs)]
    assert rates == pytest.approx([5e-4] * 10 + [5e-5] * 5) and train.warmup_epochs == 1
    assert (config.model.region_mask, config.model.word_noise) == (0.4, 0.2)
    assert (config.model.match_epsilon, config.loss.margin) == (0.02, 0.05)


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "configs").glob("*.py")))
def test_every_config_is_complete_and_locked(name):
    config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]()
    assert defaults.flat(config).keys() == defaults.flat(defaults.default()).keys()
    assert config.is_locked
    benchmark = name in ("f30k", "coco", "flickr8k", "scenes")
    assert config.mismatch.rate == (0.4 if benchmark else 0.0)  # own data stay as they are
    published = {  # warm-up, epochs, update epoch, lambda: L2RM suppl. Tab. 1 and D.1
        "f30k": (5, 35, 15, 0.01),
        "coco": (10, 20, 10, 0.07),
        "cc152k": (10, 40, 20, 0.07),
    }
    if name in published:
        train, optim = config["train"], config["optim"]
        epochs = (train["warmup_epochs"], train["epochs"], optim["decay_epochs"])
        assert (*epochs, config["l2rm"]["epsilon"]) == published[name]
        assert optim["learning_rate"] == 2e-4 and train["batch_size"] == 128
        assert config["l2rm"]["rho"] == 0.1
        assert config.loss.to_dict() == {"margin": 0.2, "tau": 0.05, "learn_scale": False}


@pytest.mark.parametrize("module", ["l2rm_jax", "l2rm_jax.main"])
def test_modules_are_the_same_command_as_l2rm(place, module):
    command = [sys.executable, "-m", module, "evaluate", "--help"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == answer(["evaluate", "--help"], main.MODES) + "\n"


def test_plugins_may_lie_where_the_command_is_run(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "argv", ["l2rm", "--version"])
    monkeypatch.setattr(main, "handle_ctrl_c", lambda: None)  # the handler of the tests stays
    monkeypatch.setattr(main, "leave_ctrl_c", lambda: None)
    main.run_command()
    assert capsys.readouterr().out == f"l2rm_jax {__version__}\n"
    assert sys.path[0] == str(place)


def test_an_error_does_not_wait_for_threads(place):
    """Orbax has threads that wait for minutes for a checkpoint that could not be written."""
    (place / "waiting.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\nquit()"
    )
    command = [sys.executable, "-m", "l2rm_jax", "check", "--config.plugins=waiting"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("error: plugins: importing waiting")


def test_the_script_l2rm_is_this_command(monkeypatch, capsys):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["l2rm"].partition(":")
    entry = importlib.import_module(module)
    monkeypatch.setattr(entry, "handle_ctrl_c", lambda: None)  # the handler of the tests stays
    monkeypatch.setattr(main, "run_command", lambda: print("this command"))
    getattr(entry, name)()
    assert capsys.readouterr().out == "this command\n"


@pytest.mark.slow
def test_a_damaged_cached_program_is_compiled_again(tmp_path):
    code = (
        "import jax; from experiments.script import start\n"
        "start(lambda: print(jax.jit(lambda x: (x @ x.T).sum())(jax.numpy.ones((3, 3)))))"
    )
    settings = {**os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    settings.pop("JAX_COMPILATION_CACHE_DIR", None)  # it would take precedence
    settings["XDG_CACHE_HOME"] = str(tmp_path)

    def run_it() -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)

    assert run_it().stdout == "27.0\n"
    kept = list((tmp_path / "l2rm_jax" / "compiled").glob("*-cache"))
    assert kept
    for entry in kept:
        entry.write_bytes(entry.read_bytes()[:20])
    again = run_it()
    assert again.stdout == "27.0\n" and "Error reading persistent" in again.stderr


@pytest.mark.parametrize("code", [None, 0, False, "", 256])
def test_code_of_a_user_cannot_end_the_program_in_silence(monkeypatch, code):
    def check(_):
        raise SystemExit(code)

    monkeypatch.setattr("l2rm_jax.check.check", check)
    with pytest.raises(SystemExit, match="error: code of a plug-in ended the program"):
        main.main(["check"])
