"""The command line: error messages, configs of the papers, and modes, run as a user runs them."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from absl import flags

from l2rm_jax import config as defaults
from l2rm_jax import main
from l2rm_jax.errors import CheckpointError, ConfigError
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.published.checkpoint import read_checkpoint
from l2rm_jax.run.config_file import write_config

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Directory to run commands in; it has the configs, but no runs of the person who tests."""
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


MISTAKES = [
    (["--config.optim.learning_rat=1"], "nearest is optim.learning_rate"),
    (["--config=configs/missing.py"], "configs/missing.py: no such config file"),
    (["--config=configs/scenes.py:slow"], "expected scenes or scenes:quick"),
    (["--config.train.epochs=2.5"], "invalid literal for int"),
    (["--config.method=l3rm"], "'l3rm' is none of triplet, infonce, l2rm, rcl"),
    (["--config=configs/f30k.py"], "data.path is empty"),
    (["--mode=evaluate"], "needs the directory of at least one run"),
    (["--mode=evaluate", "--workdir=/nonexistent"], "no run was started"),
    (["--workdir=a", "--workdir=b"], "found 2, expected one directory"),
    (["--mode=evaluate", "--workdir=a", "--config=configs/f30k.py"], "leave the flag out"),
    (["--workdir="], "--workdir: empty, expected a directory"),
    (["--workdir=/dev/null/run", "--config=configs/scenes.py:quick"], "Not a directory"),
    (["config.seed=3"], "config.seed=3: not a flag; set a field with --config.KEY=VALUE"),
    (["--mode=evaluate", "--checkpoint=a", "--workdir=b"], "found both, expected only one of them"),
    (["--proposer=a", "--top_k=3"], "need --mode=evaluate with runs"),
    (
        ["--mode=evaluate", "--workdir=a", "--top_k=3"],
        "--proposer, --top_k: found only one of them, expected both or neither",
    ),
    (["--mode=import", "--checkpoint=a", "--workdir=b", "--config.model.head=saf"], "the file"),
    (["--mode=import", "--workdir=b"], "--checkpoint: found 0, expected one with"),
    (["--checkpoint=a"], "--checkpoint: needs --mode=evaluate or --mode=import"),
    (["--hosts=2", "--host=0"], "--hosts, --host: need --coordinator"),
    (["--coordinator=auto", "--mode=check"], "--coordinator: needs --mode=train or"),
    (["--coordinator=auto", "--hosts=2"], "--coordinator=auto finds them by itself"),
    (["--coordinator=10.0.0.1:8476", "--hosts=2"], "expected ADDRESS:PORT of host 0, with --hosts"),
    (["--coordinator=localhost:1", "--hosts=2", "--host=2"], "--host: 2, expected 0 to 1"),
    (["--coordinator=auto"], "--coordinator=auto: coordinator_address should be defined"),
    (["--config.data.path=somewhere"], "data.name is 'scenes', the built-in data set"),
]
# A process that imports the slow modules once, and forks to run each list of arguments.
COMMAND_LINES = """
import json, os, runpy, sys
import l2rm_jax.evaluate, l2rm_jax.published.import_run, l2rm_jax.train
for output, arguments in json.load(sys.stdin):
    if os.fork() == 0:
        file = os.open(output, os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1), os.dup2(file, 2)
        sys.argv[1:] = arguments
        runpy.run_module("l2rm_jax.main", run_name="__main__", alter_sys=True)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.fixture(scope="module")
def answers(place, tmp_path_factory) -> dict[str, tuple[int, str]]:
    """Exit status and output of each mistake, by its message."""
    outputs = [str(tmp_path_factory.mktemp("answers") / "output") for _ in MISTAKES]
    jobs = json.dumps([(output, case[0]) for output, case in zip(outputs, MISTAKES, strict=True)])
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", COMMAND_LINES]
    done = subprocess.run(
        command, cwd=place, input=jobs, capture_output=True, text=True, check=True
    )
    return {
        message: (int(status), Path(output).read_text())
        for output, (_, message), status in zip(outputs, MISTAKES, done.stdout.split(), strict=True)
    }


@pytest.mark.parametrize("message", [message for _, message in MISTAKES])
def test_mistakes_end_at_once_with_one_message(answers, message):
    status, output = answers[message]
    assert status != 0
    assert message in output
    assert "Traceback" not in output


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
    with pytest.raises(ConfigError, match=f"{name}:tan: no such variant, expected {name} or"):
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


def test_a_run_continues_with_its_own_config(run, tmp_path):
    config = defaults.default()
    config.data.name = "mine"
    write_config(tmp_path, config)
    done = run(f"--workdir={tmp_path}", "--config.train.epochs=7")
    assert "train.epochs: 35 -> 7" in done.stderr
    assert done.stderr.count(" -> ") == 2  # one in the heading, one for the field


def test_error_without_pytorch_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CheckpointError, match=r"pip install 'l2rm_jax\[torch\]'"):
        read_checkpoint("a.pth.tar")


def test_error_for_a_misspelt_key_names_the_config_file(run, tmp_path):
    lines = ["from l2rm_jax.config import default", "def get_config():", "  c = default()"]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "  c.data.pth = 'here'", "  return c"]))
    done = run(f"--config={tmp_path / 'mine.py'}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: {tmp_path / 'mine.py'}: pth: no such config key; the nearest is data.path"
    )


def test_error_for_a_config_file_with_a_syntax_error_is_one_line(run, tmp_path):
    (tmp_path / "mine.py").write_text("def get_config(:")
    done = run(f"--config={tmp_path / 'mine.py'}")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {tmp_path / 'mine.py'}: SyntaxError: invalid syntax (mine.py, line 1)\n"
    )


def test_data_errors_come_before_any_device_is_used_or_file_written(run, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nosuchdevice")  # using a device would fail
    sizes = ["--config.train.batch_size=600", f"--workdir={tmp_path / 'run'}"]
    done = run("--config=configs/scenes.py:quick", *sizes)
    assert done.returncode == 1
    assert "train: found 500 pairs, expected at least one batch of 600" in done.stderr
    assert "nosuchdevice" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_error_for_a_device_out_of_memory_is_one_line(monkeypatch):
    monkeypatch.setitem(main._MODES, "train", lambda: jnp.zeros((2**20, 2**28)) + 1)
    flags.FLAGS(["main"])
    with pytest.raises(SystemExit, match=r"error: RESOURCE_EXHAUSTED.*Try a smaller model"):
        main.main(["main"])


def test_check_describes_the_built_in_data(run, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nosuchdevice")
    done = run("--mode=check", "--config=configs/scenes.py:quick")
    assert done.returncode == 0, done.stderr
    assert "train: 100 images of 12 regions x 64 features" in done.stdout
    assert "rate_asked 0.4, true_rate 0.4" in done.stdout


@pytest.mark.parametrize("name", ["f30k", "coco"])
def test_config_of_omit(name):
    """OMIT Sec. 4.1: ten epochs at the full learning rate, then five at a tenth of it."""
    config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]("omit")
    assert config.data.name == name and config.evaluation.protocol.startswith(name)
    assert (config.method, config.model.head, config.mismatch.rate) == ("triplet", "omit", 0.0)
    optim, train = config.optim, config.train
    assert (optim.learning_rate, optim.weight_decay, train.batch_size) == (5e-4, 5e-4, 384)
    rate = Optimiser(optim.learning_rate, optim.decay_epochs, train.warmup_epochs).rate
    rates = [float(rate(epoch)) for epoch in range(train.warmup_epochs + train.epochs)]
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
        assert config.loss.to_dict() == {"margin": 0.2, "tau": 0.05}


def test_module_and_package_are_the_same_command(place):
    """`python -m l2rm_jax` is `python -m l2rm_jax.main`."""
    command = [sys.executable, "-m", "l2rm_jax", "--config.seeed=1"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: --config.seeed=1: no such config key; the nearest is seed\n"


def test_a_damaged_cached_program_is_compiled_again(tmp_path):
    code = (
        "import jax; from experiments.sweep import start\n"
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
