"""Log of a run: valid JSON at all times, without duplicates or gaps; means of step metrics."""

import json
import resource
import struct

import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.errors import CheckpointError, ConfigError
from l2rm_jax.run import log as run_log
from l2rm_jax.run.log import Means, RunLog
from l2rm_jax.run.results import versions, write_results

HEADER = {"protocol": "image", "rate_asked": 0.6, "true_rate": 0.598}


def records(workdir) -> list[dict]:
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_every_record_is_on_disk_at_once_with_the_header(tmp_path):
    with RunLog(tmp_path / "new", HEADER) as log:
        log.write("step", 1, loss=jnp.float32(1.5), count=np.int64(3), recall=np.array([1.0, 2.0]))
        assert records(tmp_path / "new") == [
            {"kind": "step", "step": 1, **HEADER, "loss": 1.5, "count": 3, "recall": [1.0, 2.0]}
        ]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    """A limit on the size of files fails in the same way as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunLog(tmp_path, {}) as log:
        log.write("step", 1)
        try:
            for size in (60, 40):  # room for a part of the line, and for nothing
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
                with pytest.raises(OSError, match=r"metrics\.jsonl"):
                    log.write("step", 2, text="x" * 100)
            with pytest.raises(OSError, match=r"File too large: .*results\.json"):
                write_results(tmp_path, {"text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    with RunLog(tmp_path, {}, resume_step=1):
        assert records(tmp_path) == [{"kind": "step", "step": 1}]


def test_other_hosts_neither_write_nor_print(tmp_path, capsys):
    with RunLog(tmp_path / "new", HEADER, tensorboard=True, primary=False) as log:
        log.say("nothing to say")
        log.warn(1, message="all is lost")
    assert not (tmp_path / "new").exists() and capsys.readouterr().out == ""


@pytest.mark.parametrize("value", [float("nan"), np.float32("inf"), jnp.array(-jnp.inf)])
def test_non_finite_values_stay_valid_json(tmp_path, value):
    with RunLog(tmp_path, {}) as log:
        log.write("step", 1, loss=value, nested={"list": [value, 1]})
    write_results(tmp_path, {"rsum": value})
    assert records(tmp_path)[0] == {
        "kind": "step",
        "step": 1,
        "loss": None,
        "nested": {"list": [None, 1]},
    }
    assert json.loads((tmp_path / "results.json").read_text()) == {"rsum": None}


def test_resume_leaves_no_duplicates_and_no_gaps(tmp_path):
    with RunLog(tmp_path, HEADER) as log:
        for step in range(1, 8):
            log.write("step", step, loss=step)
        log.write("epoch", 7)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # killed while writing
    with RunLog(tmp_path, HEADER, resume_step=5) as log:
        for step in range(6, 10):
            log.write("step", step, loss=-step)
    assert [r["step"] for r in records(tmp_path)] == list(range(1, 10))
    assert [r["loss"] for r in records(tmp_path)] == [1, 2, 3, 4, 5, -6, -7, -8, -9]


def test_resume_keeps_the_records_of_finished_epochs_only(tmp_path):
    """A run may be stopped right after the plan of an epoch, or right after its last step."""

    def resumed(step: int, epochs: int) -> list[tuple]:
        with RunLog(tmp_path, {}) as log:
            log.warn(4, epoch=2, message="of the plan")
            log.write("step", 5, epoch=2)
            log.write("epoch", 5, epoch=2)
            log.warn(5, epoch=2, message="of the epoch")
            log.warn(
                5, epoch=2, phase="end", message="of the end, which a resumed run writes again"
            )
        with RunLog(tmp_path, {}, resume_step=step, epochs=epochs):
            return [(r["kind"], r["step"]) for r in records(tmp_path)]

    assert resumed(4, 1) == []
    assert resumed(5, 1) == [("warning", 4), ("step", 5)]
    assert resumed(5, 2) == [("warning", 4), ("step", 5), ("epoch", 5), ("warning", 5)]


@pytest.mark.parametrize("line", [b"\0\0", b"\xff", b"7", b'{"step": "a", "kind": ""}', b"{}"])
def test_a_damaged_log_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"kind": "step", "step": 1}\n' + line + b"\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2"):
        RunLog(tmp_path, {}, resume_step=5)


def test_resume_without_a_log_file(tmp_path):
    with RunLog(tmp_path, {}, resume_step=5) as log:
        log.write("step", 6)
    assert [r["step"] for r in records(tmp_path)] == [6]


def scalars(workdir) -> list[tuple[str, int, float]]:
    """Points that TensorBoard shows: all event files without the purged points."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    shown = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:  # length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.HasField("session_log"):
                shown = [point for point in shown if point[1] < event.step]
            shown += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return shown


def test_tensorboard_shows_every_point_once(tmp_path):
    pytest.importorskip("tensorboardX")
    with RunLog(tmp_path, HEADER, tensorboard=True) as log:
        for step in range(1, 5):
            log.write("step", step, loss=jnp.float32(step), name="text", bad=float("nan"))
        log.write("epoch", 4, rsum=100.0)
        log.warn(4, epoch=1, message="no scalar")
    with RunLog(tmp_path, HEADER, tensorboard=True, resume_step=2) as log:
        for step in range(3, 5):
            log.write("step", step, loss=-step)
        log.write("epoch", 4, rsum=200.0)
    assert sorted(scalars(tmp_path)) == [("epoch/rsum", 4, 200.0)] + [
        ("step/loss", step, loss) for step, loss in [(1, 1.0), (2, 2.0), (3, -3.0), (4, -4.0)]
    ]
    with RunLog(tmp_path, HEADER, tensorboard=True) as log:
        log.write("step", 1, loss=7.0)
    assert scalars(tmp_path) == [("step/loss", 1, 7.0)]


def test_tensorboard_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(run_log.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="tensorboardX") as caught:
        RunLog(tmp_path / "run", HEADER, tensorboard=True)
    assert caught.value.hint == "pip install 'l2rm_jax[tensorboard]'"
    assert not (tmp_path / "run").exists()


def test_results_are_replaced_in_one_piece(tmp_path):
    write_results(tmp_path, {"rsum": np.float32(412.5), "versions": versions()})
    with pytest.raises(TypeError):
        write_results(tmp_path, {"rsum": object()})
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rsum"] == 412.5
    assert results["versions"]["jax"].count(".") >= 2
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_means_continue_from_their_state():
    first = Means({"epoch": 3})
    first.add({"loss": jnp.float32(1.0), "rare": jnp.float32(5.0)})
    first.add({"loss": jnp.float32(3.0)})
    assert first.fetch() == [] and first.flush() == {"loss": 2.0}
    first.add({"loss": jnp.float32(0.1)})
    first.fetch()
    second = Means(json.loads(json.dumps(first.state)))
    second.add({"loss": jnp.float32(8.0)})
    assert second.fetch() == []
    assert second.flush() == {"loss": (float(np.float32(0.1)) + 8.0) / 2}
    assert second.means() == pytest.approx({"loss": 12.1 / 4, "rare": 5.0})


def test_steps_that_are_not_finite_are_counted_and_left_out_of_all_means():
    means = Means({})
    for loss in (1.0, jnp.nan, jnp.inf, 3.0):
        means.add({"loss": jnp.float32(loss), "mass": jnp.float32(0.5)})
    [(three, nan), (two, inf)] = means.fetch()
    assert (three, two) == (2, 1) and np.isnan(nan["loss"]) and inf == {"loss": np.inf}
    assert means.skipped == 2 and Means(means.state).skipped == 2
    assert means.flush() == means.means() == {"loss": 2.0, "mass": 0.5}
    means.add({"loss": jnp.float32(jnp.nan)})
    assert len(means.fetch()) == 1 and means.flush() == {}
