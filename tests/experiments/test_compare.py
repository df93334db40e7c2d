"""One table of runs: their files are written as a run writes them, and nothing is trained."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.papers import compare
from experiments.papers.groups import group_runs
from experiments.papers.plot_validation import plot
from experiments.papers.runs import RECALLS, read_run
from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from l2rm_jax.run.config_file import with_changes, write_config
from l2rm_jax.run.log import RunLog
from l2rm_jax.run.results import write_results


def leave_run(
    workdir: Path, validation: list[float], test: float | None = None, images: int = 500, **changes
) -> None:
    """Write the files of a run with these rSums; without `test`, of an unfinished run.

    Changes are config fields, with `__` for the dot.
    """
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    config = with_changes(defaults.get_config("long"), changes)
    recalls = lambda rsum: {"images": images, **dict.fromkeys(RECALLS, rsum / 6), "rsum": rsum}  # noqa: E731
    with RunLog(workdir, {"data": config.data.name}) as log:
        log.write("step", 1, loss=3.0)
        for epoch, rsum in enumerate(validation, 1):
            log.write("epoch", epoch, epoch=epoch, **recalls(rsum))
    write_config(workdir, config)
    if test is not None:
        results = {"test": {"custom": recalls(test)}, "seconds": 60.4, "config": config.to_dict()}
        write_results(workdir, {**results, "versions": {"device": "cpu"}})


def run(capsys, *arguments: object) -> tuple[list[str], list[str]]:
    """Call the script; return the lines of its output and of its last message."""
    last = ""
    try:
        compare.main([*map(str, arguments)])
    except SystemExit as error:
        last = error.code
    return capsys.readouterr().out.splitlines(), last.splitlines()


def cells(line: str) -> list[str]:
    """The cells of a row of the table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_runs_that_differ_only_in_seeds_are_averaged(tmp_path, capsys):
    """The best validation comes first, whatever the test says."""
    for seed, validation, test in [(0, [90, 200], 210), (1, [90, 220], 190), (2, [240, 80], 230)]:
        changes = {"seed": seed, "mismatch__seed": seed, "train__log_steps": 1 + seed}
        leave_run(tmp_path / f"a{seed}", validation, test, **changes)
    leave_run(tmp_path / "b" / "inner", [250.0], 120, method="triplet", mismatch__rate=0.6)
    lines, last = run(capsys, tmp_path, tmp_path / "a0")  # each run counts once
    assert cells(lines[0])[1:5] == ["method", "mismatch.rate", "seeds", "mismatch seeds"]
    assert [cells(line) for line in lines[2:]] == [
        ["1", "triplet", "0.6", "1", "1", "250.0", "120.0", "20.0", "20.0", "60"],
        ["2", "l2rm", "0.4", "3", "3", "220.0 ±20.0", "210.0 ±20.0",
         "35.0 ±3.3", "35.0 ±3.3", "60"],
    ]  # fmt: skip
    assert not last


def test_unfinished_runs_show_how_far_they_are(tmp_path, capsys):
    leave_run(tmp_path / "a0", [90.0, 200.0], 210.0)
    leave_run(tmp_path / "a1", [90.0, 300.0, 100.0], seed=1)
    leave_run(tmp_path / "b", [80.0], method="rcl")
    leave_run(tmp_path / "c0", [], method="triplet")
    leave_run(tmp_path / "c1", [70.0, 60.0], method="triplet", seed=1)
    lines, last = run(capsys, tmp_path, f"--csv={tmp_path / 't.csv'}")
    assert [cells(line) for line in lines[2:5]] == [
        ["1", "l2rm", "1 of 2", "200.0", "210.0", "35.0", "35.0", "60"],
        ["2", "rcl", "1", "80.0", "epoch 1/12", "", "", ""],
        ["3", "triplet", "2", "70.0", "epoch 0-2/12", "", "", ""],
    ]
    note = f"row 1: {tmp_path / 'a1'} is not in the means: epoch 3/12, validation rSum 300.0 so far"
    assert lines[5:] == [note] and not last
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["runs"] == f"{tmp_path / 'a0'} {tmp_path / 'a1'}"
    assert [row["rsum"] for row in rows] == ["210.0", "", ""]
    assert [row["progress"] for row in rows] == ["epoch 3/12", "epoch 1/12", "epoch 0-2/12"]


def test_results_that_are_older_than_added_epochs_are_not_shown(tmp_path, capsys):
    leave_run(tmp_path, [90.0] * 12, 210.0)
    write_config(tmp_path, with_changes(defaults.get_config("long"), {"train.epochs": 6}))
    assert cells(run(capsys, tmp_path)[0][2])[2:4] == ["90.0", "epoch 12/14"]


def test_repeats_and_tests_of_other_data_are_named(tmp_path, capsys):
    leave_run(tmp_path / "a", [90.0], 210.0)
    leave_run(tmp_path / "b", [80.0], 200.0)
    leave_run(tmp_path / "c", [70.0], 190.0, images=100, seed=1)
    text = " ".join(run(capsys, tmp_path)[0])
    assert "100 and 500" in text and "note: test images: rows" in text
    assert f"row 1: the mean counts each of {tmp_path / 'a'} and {tmp_path / 'b'}, which" in text
    assert "row 1: its runs were tested on 100 and 500 images" in text
    leave_run(tmp_path / "d", [60.0], 180.0, data__name="mine", data__dev_images=9)
    text = " ".join(run(capsys, tmp_path)[0])
    assert "note: data.name: rows" in text and "note: data.dev_images: validations" in text


def test_directories_that_cannot_be_read_come_last(tmp_path, capsys):
    leave_run(tmp_path / "good", [90.0], 210.0)
    for name, file, text in [
        ("field", "config.json", '{"train": {"epohs": 3}}'),
        ("metrics", "metrics.jsonl", '{"kind": "epoch", "rsum": null}\n'),
        ("results", "results.json", "{}"),
        ("torn", "results.json", '{"test'),
    ]:
        leave_run(tmp_path / name, [90.0], 210.0)
        (tmp_path / name / file).write_text(text)
    (tmp_path / "empty").mkdir()
    lines, last = run(capsys, tmp_path, tmp_path / "empty", tmp_path / "missing")
    assert len(lines) == 3 and "210.0" in lines[2]
    reasons = [
        f"{tmp_path / 'empty'}: no config.json there or below, so it holds no run",
        f"{tmp_path / 'missing'}: no such directory",
        f"{tmp_path / 'field' / 'config.json'}: config.train.epohs: no such field",
        f"{tmp_path / 'metrics' / 'metrics.jsonl'}:1: not a record of a run: TypeError",
        f"{tmp_path / 'results' / 'results.json'}: not the results of a run: KeyError: 'config'",
        f"{tmp_path / 'torn' / 'results.json'}: not the results of a run: JSONDecodeError",
    ]
    assert len(last) == len(reasons)
    for line, reason in zip(last, reasons, strict=True):
        assert line.startswith(f"not read: {reason}")
    lines, last = run(capsys, tmp_path / "empty")
    assert not lines and len(last) == 1


def test_curves_have_a_band(tmp_path):
    leave_run(tmp_path / "a0", [90.0, 200.0], 210.0)
    leave_run(tmp_path / "a1", [110.0, 100.0, 400.0], seed=1)
    leave_run(tmp_path / "b", [], method="triplet")
    groups = group_runs([read_run(tmp_path / name) for name in ("a0", "a1", "b")])
    (axes,) = plot(groups).axes
    first, second = axes.lines
    np.testing.assert_array_equal(first.get_xydata(), [(1, 100), (2, 150), (3, 400)])
    assert second.get_xydata().size == 0
    vertices = axes.collections[0].get_paths()[0].vertices
    assert {(1, 90), (1, 110), (2, 100), (2, 200)} <= {tuple(vertex) for vertex in vertices}


def test_figures_are_files(tmp_path, capsys):
    leave_run(tmp_path / "a", [90.0, 200.0], 210.0)
    run(
        capsys,
        tmp_path,
        f"--figure={tmp_path / 'curves.svg'}",
        "--measure=i2t_r1",
        f"--csv={tmp_path / 't.csv'}",
    )
    assert "<svg" in (tmp_path / "curves.svg").read_text() and (tmp_path / "t.csv").exists()
    inside = tmp_path / "a" / "config.json"  # a file
    for flag in ("--figure=curves.jpg", f"--figure={inside}/c.png", f"--csv={inside}/t.csv"):
        with pytest.raises(ConfigError, match=flag):
            compare.main([str(tmp_path), flag])


def test_a_record_that_is_being_written_is_left_out(tmp_path):
    leave_run(tmp_path, [90.0])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "epoch"})[:-3])
    assert [record["rsum"] for record in read_run(tmp_path).records] == [90.0]
