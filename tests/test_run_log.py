"""The log is valid JSON at every moment, and a resumed run leaves neither duplicates nor holes."""

import io
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import run_log
from l2rm_jax.run_log import RunLog, versions, write_results

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


def test_resume_leaves_no_duplicates_and_no_holes(tmp_path):
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


def test_start_without_resume_begins_anew(tmp_path):
    for loss in (1, 2):
        with RunLog(tmp_path, {}) as log:
            log.write("step", 1, loss=loss)
    assert [r["loss"] for r in records(tmp_path)] == [2]


def test_resume_where_the_log_was_lost(tmp_path):
    with RunLog(tmp_path, {}, resume_step=5) as log:
        log.write("step", 6)
    assert [r["step"] for r in records(tmp_path)] == [6]


def test_epoch_line_is_printed_and_recorded(tmp_path, capsys):
    with RunLog(tmp_path, HEADER) as log:
        log.epoch(200, epoch=2, loss=0.123456, matched=np.int64(41))
    assert capsys.readouterr().out == (
        "step 200  epoch 2  loss 0.1235  matched 41"
        "  [protocol image  rate_asked 0.6  true_rate 0.598]\n"
    )
    assert records(tmp_path)[0]["kind"] == "epoch"
    assert records(tmp_path)[0]["loss"] == 0.123456


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_bar() -> None:
    with run_log.progress_bar(400, "epoch 2", initial=100) as bar:
        for _ in range(3):
            bar.update(100)
            bar.set_postfix(loss="0.25")


def test_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(run_log.tqdm, "monitor_interval", 0)
    with run_log.progress_bar(400, "epoch 2", initial=100) as bar:
        bar.update(300)
        bar.set_postfix(loss="0.25")
        bar.refresh()
    shown = sys.stderr.getvalue()
    assert "\r" in shown
    for part in ("epoch 2: 100%", "400/400", " pairs/s", "loss=0.25"):
        assert part in shown


def test_bar_away_from_a_terminal_is_plain_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(run_log, "QUIET_SECONDS", 0.0)
    run_bar()
    shown = sys.stderr.getvalue()
    assert "\r" not in shown
    lines = shown.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("epoch 2: ") for line in lines)
    assert "400/400" in lines[-1] and "loss=0.25" in lines[-1]


def test_short_work_away_from_a_terminal_shows_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run_bar()
    assert sys.stderr.getvalue() == ""


def test_other_processes_write_and_show_nothing(tmp_path, capsys):
    with RunLog(tmp_path / "run", HEADER, primary=False) as log:
        log.write("step", 1)
        log.epoch(1, loss=1.0)
    captured = capsys.readouterr()
    assert not captured.out and not captured.err
    assert not (tmp_path / "run").exists()


def test_results_are_replaced_in_one_piece(tmp_path):
    write_results(tmp_path, {"rsum": np.float32(412.5), "versions": versions()})
    with pytest.raises(TypeError):
        write_results(tmp_path, {"rsum": object()})
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rsum"] == 412.5
    assert results["versions"]["jax"].count(".") >= 2
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
