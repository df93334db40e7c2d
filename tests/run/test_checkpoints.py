"""Checkpoints survive kills, damaged files, full disks and repeated steps."""

import gc
import logging
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import struct

import l2rm_jax
from l2rm_jax.config import default
from l2rm_jax.errors import CheckpointError, ConfigError
from l2rm_jax.run import checkpoint_format
from l2rm_jax.run import checkpoints as checkpoint
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.config_file import check_workdir

OPTIMIZER = optax.chain(optax.clip_by_global_norm(2.0), optax.adam(1e-3))


# If one read fails, orbax drops the other reads of that checkpoint without awaiting them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(checkpoint_format, "RETRY_PAUSES", (0.0, 0.0))


@pytest.fixture
def abandoned_reads():
    """Collect the dropped reads, so that their warnings do not appear in a later test."""
    yield
    gc.collect()


class State(struct.PyTreeNode):
    step: jax.Array
    params: dict[str, jax.Array]
    opt_state: optax.OptState
    key: jax.Array


def make_state(step: int) -> State:
    """A state after one optimiser update, different for each `step`."""
    kernel = jax.random.normal(jax.random.key(step), (7, 3))
    params = {"kernel": kernel, "half": kernel[0].astype(jnp.bfloat16)}
    with jax.numpy_dtype_promotion("standard"):  # Adam's averages of bfloat16 are float32
        _, opt_state = OPTIMIZER.update(params, OPTIMIZER.init(params), params)
    return State(jnp.int32(step), params, opt_state, jax.random.key(100 + step))


ABSTRACT = jax.eval_shape(lambda: make_state(0))


def assert_same(actual: State, expected: State) -> None:
    """Check for equal structure (NamedTuples included), types and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        if jax.dtypes.issubdtype(y.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def save_steps(directory: Path, steps: tuple[int, ...]) -> None:
    with RunCheckpoints(directory) as checkpoints:
        for step in steps:
            plan = {"matched": np.arange(step, dtype=np.int64)}
            checkpoints.save(step, make_state(step), plan, {"epoch": step // 10})


def test_restore_when_nothing_was_saved(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT) is None
        with pytest.raises(CheckpointError):
            checkpoints.restore_best(ABSTRACT)


def test_resume_returns_what_was_saved(tmp_path):
    plan = {
        "matched": np.array([5, 3, 8], np.int64),
        "mismatched": np.zeros(0, np.int32),
        "weights": np.random.default_rng(0).random((4, 2), np.float32),
    }
    position = {"epoch": 3, "step_in_epoch": 7, "best_rsum": float("-inf"), "phase": "rematch"}
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(17, make_state(17), plan, position)
    with RunCheckpoints(tmp_path) as checkpoints:
        resumed = checkpoints.restore_latest(ABSTRACT)
    assert_same(resumed.state, make_state(17))
    assert resumed.position == position
    assert resumed.plan.keys() == plan.keys()
    for name, array in plan.items():
        assert resumed.plan[name].dtype == array.dtype
        np.testing.assert_array_equal(resumed.plan[name], array)


def test_newest_two_are_kept_and_newest_is_used(tmp_path):
    save_steps(tmp_path, (10, 25, 30, 35))
    assert sorted(os.listdir(tmp_path / "latest")) == ["30", "35"]
    with RunCheckpoints(tmp_path) as checkpoints:
        resumed = checkpoints.restore_latest(ABSTRACT)
    assert_same(resumed.state, make_state(35))
    assert len(resumed.plan["matched"]) == 35


def test_the_second_save_of_a_step_is_used_and_later_steps_follow(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(4, make_state(4), {}, {"epoch": 0})
        checkpoints.save(4, make_state(5), {}, {"epoch": 1})
        resumed = checkpoints.restore_latest(ABSTRACT)
        assert resumed.position == {"epoch": 1}
        assert_same(resumed.state, make_state(5))
        checkpoints.save(5, make_state(6), {}, {"epoch": 2})
        assert checkpoints.restore_latest(ABSTRACT).position == {"epoch": 2}


def test_arguments_may_change_once_save_has_returned(tmp_path):
    state = {"device": jnp.arange(300_000.0), "host": np.arange(300_000.0, dtype=np.float32)}
    expected = jax.tree.map(np.array, state)
    with RunCheckpoints(tmp_path) as checkpoints:
        position = {"sums": {"loss": [np.float32(0.5), 3]}}
        checkpoints.save(1, state, {}, position)
        position["sums"]["loss"][1] = 4
        jax.jit(lambda x: x + 1, donate_argnums=0)(state["device"]).block_until_ready()
        state["host"][:] = -1
        resumed = checkpoints.restore_latest(expected)
    assert resumed.position == {"sums": {"loss": [0.5, 3]}}
    np.testing.assert_array_equal(resumed.state["device"], expected["device"])
    np.testing.assert_array_equal(resumed.state["host"], expected["host"])


@pytest.mark.parametrize("name", ["lr=[0.1,0.2]", "run]", "a*", "is it?", "a\\b", "\udcff"])
def test_paths_with_characters_of_patterns_are_refused(tmp_path, name):
    """Orbax globs its own paths, and its array format changes others."""
    with pytest.raises(ConfigError, match=r"found .* in the path") as caught:
        RunCheckpoints(tmp_path / name)
    hint = shlex.split(caught.value.hint)[0].removeprefix("--workdir=")
    with pytest.raises(ConfigError, match=r"found .* in the path"):
        check_workdir(tmp_path / name / "inside", default())
    with RunCheckpoints(hint) as checkpoints:
        checkpoints.save(1, make_state(1), {}, {})


def test_the_first_checkpoint_is_read_back(tmp_path, monkeypatch):
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1), {}, {})

    def fail(*_):
        raise OSError("no such metadata")

    monkeypatch.setattr(checkpoint, "restore", fail)
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(2, make_state(2), {}, {})  # it is not the first
    with (
        pytest.raises(CheckpointError, match="the first checkpoint cannot be read back"),
        RunCheckpoints(tmp_path / "new") as checkpoints,
    ):
        checkpoints.save(1, make_state(1), {}, {})


def test_restores_to_the_sharding_of_the_target(tmp_path):
    save_steps(tmp_path, (3,))
    device = jax.devices()[2]
    target = jax.device_put(make_state(0), device)
    with RunCheckpoints(tmp_path) as checkpoints:
        elsewhere = checkpoints.restore_latest(target).state
        default = checkpoints.restore_latest(ABSTRACT).state
    assert elsewhere.params["kernel"].devices() == {device}
    assert default.params["kernel"].devices() == {jax.devices()[0]}
    assert_same(elsewhere, make_state(3))


def test_the_best_checkpoint_is_kept_when_later_steps_are_saved(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save_best(10, make_state(10))
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save_best(20, make_state(20))
        for step in (20, 30, 40):
            checkpoints.save(step, make_state(step), {}, {})
        checkpoints.save_best(20, make_state(21))
    assert os.listdir(tmp_path / "best") == ["20"]
    with RunCheckpoints(tmp_path) as checkpoints:
        assert_same(checkpoints.restore_best(ABSTRACT), make_state(20))
        assert_same(checkpoints.restore_latest(ABSTRACT).state, make_state(40))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x15
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.usefixtures("abandoned_reads")
@pytest.mark.parametrize("damage", [Path.unlink, _truncate, _flip_a_byte])
def test_damage_to_any_file_is_noticed_or_harmless(tmp_path, damage, caplog):
    """Damage each file of the newest checkpoint in turn: never a wrong state, never a crash."""
    save_steps(tmp_path / "sound", (10, 20))
    newest = tmp_path / "sound" / "latest" / "20"
    files = sorted(p.relative_to(newest) for p in newest.rglob("*") if p.is_file())
    fell_back = 0
    for number, file in enumerate(files):
        run = tmp_path / str(number)
        shutil.copytree(tmp_path / "sound", run)
        damage(run / "latest" / "20" / file)
        caplog.clear()
        with RunCheckpoints(run) as checkpoints:
            resumed = checkpoints.restore_latest(ABSTRACT)
        step = int(resumed.state.step)
        assert_same(resumed.state, make_state(step))
        assert len(resumed.plan["matched"]) == step
        assert resumed.position == {"epoch": step // 10}
        if step == 10:
            fell_back += 1
            warning = next(r for r in caplog.records if r.name == "l2rm_jax.run.checkpoints")
            assert warning.levelno == logging.WARNING
            assert str(run / "latest" / "20") in warning.getMessage()
    assert fell_back >= 3  # at least for the record, the array data and its index


@pytest.mark.usefixtures("abandoned_reads")
def test_a_run_continues_if_the_newest_checkpoint_is_damaged(tmp_path):
    save_steps(tmp_path, (10, 20))
    shutil.rmtree(tmp_path / "latest" / "20" / "state")
    with RunCheckpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT).position == {"epoch": 1}
        assert sorted(os.listdir(tmp_path / "latest")) == ["10", "20.damaged"]
        checkpoints.save(15, make_state(15), {}, {"epoch": 15})
        assert checkpoints.restore_latest(ABSTRACT).position == {"epoch": 15}
        checkpoints.save(20, make_state(20), {}, {"epoch": 20})
        assert checkpoints.restore_latest(ABSTRACT).position == {"epoch": 20}
    with RunCheckpoints(tmp_path) as checkpoints:  # step 20 lies beside its damaged copy
        assert checkpoints.restore_latest(ABSTRACT).position == {"epoch": 20}
        checkpoints.save(25, make_state(25), {}, {})
    assert sorted(os.listdir(tmp_path / "latest")) == ["20", "20.damaged", "25"]


def test_a_read_that_fails_once_is_tried_again(tmp_path, monkeypatch):
    save_steps(tmp_path, (10, 20))
    real, errors = ocp.StandardCheckpointHandler.restore, [OSError(116, "Stale file handle")]

    def restore(*args, **kwargs):
        if errors:
            raise errors.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(ocp.StandardCheckpointHandler, "restore", restore)
    with RunCheckpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT).position == {"epoch": 2}
    assert not errors
    assert sorted(os.listdir(tmp_path / "latest")) == ["10", "20"]


def test_no_host_uses_a_checkpoint_that_another_host_cannot_read(tmp_path, monkeypatch, caplog):
    save_steps(tmp_path, (10, 20))
    fails_elsewhere = iter([True, False])
    monkeypatch.setattr(checkpoint, "on_any_host", lambda value: value or next(fails_elsewhere))
    with RunCheckpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT).position == {"epoch": 1}
    assert "20.damaged" in caplog.text


@pytest.mark.usefixtures("abandoned_reads")
def test_all_damaged_is_an_error_and_nothing_is_removed(tmp_path):
    save_steps(tmp_path, (10, 20))
    for step in ("10", "20"):
        shutil.rmtree(tmp_path / "latest" / step / "state")
    with (
        RunCheckpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match=r"step 20: .*; step 10: "),
    ):
        checkpoints.restore_latest(ABSTRACT)
    assert sorted(os.listdir(tmp_path / "latest")) == ["10", "20"]


@pytest.mark.usefixtures("abandoned_reads")
def test_damaged_best_is_an_error(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save_best(10, make_state(10))
    shutil.rmtree(tmp_path / "best" / "10" / "state")
    with (
        RunCheckpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match="best/10"),
    ):
        checkpoints.restore_best(ABSTRACT)


@pytest.mark.usefixtures("abandoned_reads")
def test_state_of_another_model_is_an_error(tmp_path):
    save_steps(tmp_path, (10,))
    other = ABSTRACT.replace(params={"other": jax.ShapeDtypeStruct((2,), jnp.float32)})
    with RunCheckpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError):
        checkpoints.restore_latest(other)


@pytest.mark.parametrize("again", [20, 30])
def test_a_full_disk_is_an_error_and_earlier_checkpoints_stay(tmp_path, again, caplog):
    """A limit on the size of files fails in the same way as a full disk; orbax logs nothing."""
    noise = jax.random.normal(jax.random.key(0), (100_000,))
    save_steps(tmp_path, (10, 20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with (
            pytest.raises(CheckpointError, match=r"latest: .*File too large"),
            RunCheckpoints(tmp_path) as checkpoints,
        ):
            checkpoints.save(again, {"a": noise}, {}, {})
        with (
            pytest.raises(CheckpointError, match=r"best: .*File too large"),
            RunCheckpoints(tmp_path) as checkpoints,
        ):
            checkpoints.save_best(30, {"a": noise})
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not caplog.records
    with RunCheckpoints(tmp_path) as checkpoints:
        assert_same(checkpoints.restore_latest(ABSTRACT).state, make_state(20))
        assert checkpoints.newest() == tmp_path / "latest" / "20"
        checkpoints.save(30, make_state(30), {}, {})
        assert checkpoints.newest() == tmp_path / "latest" / "30"


KILLED_WHILE_SAVING = """
import os, sys
import jax.numpy as jnp
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.config_file import check_workdir
checkpoints = RunCheckpoints(sys.argv[1])
checkpoints.save(10, {"a": jnp.full(3_000_000, 10.0)}, {}, {})
checkpoints.wait()
checkpoints.save(int(sys.argv[2]), {"a": jnp.full(3_000_000, 20.0)}, {}, {})
while len(os.listdir(os.path.join(sys.argv[1], "latest"))) < 2:
    pass
os._exit(9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [10, 20], ids=["again", "next"])
def test_kill_in_the_middle_of_a_save(tmp_path, step):
    source = str(Path(l2rm_jax.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path), str(step)]
    assert subprocess.run(command, env=environment, check=False).returncode == 9
    whole = [name for name in os.listdir(tmp_path / "latest") if name.isdecimal()]
    assert whole == ["10"], "the save was not interrupted"
    target = {"a": jax.ShapeDtypeStruct((3_000_000,), jnp.float32)}
    with RunCheckpoints(tmp_path) as checkpoints:
        assert float(checkpoints.restore_latest(target).state["a"][-1]) == 10.0
        checkpoints.save(step, {"a": jnp.full(3_000_000, 21.0)}, {}, {})
        assert float(checkpoints.restore_latest(target).state["a"][-1]) == 21.0
