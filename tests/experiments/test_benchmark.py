"""The benchmark: its suites, its pool of processes, its statistics and its pages."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import page, pool, records, tables
from experiments.benchmark.statistics import Mean, mean_of, paired_difference, within_error
from experiments.benchmark.suite import Cell, Grid, Row, Suite, cells, find_suite, suite_names
from experiments.pages.results_page import updated
from experiments.papers.runs import total_epochs
from l2rm_jax.config import flat
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.config_file import load_config
from l2rm_jax.run.inputs import check_settings
from tests.experiments.finished_runs import command, leave_run, read_csv

SUITE = Suite(
    config="scenes",
    rows={
        "cca": Row({"method": "cca"}),
        "infonce": Row({"method": "infonce"}),
        "kept": Row({"method": "infonce", "data.filter": "truth"}, "truth", drops=True),
        "l2rm": Row({"method": "l2rm"}, "loss"),
    },
    grids=(
        Grid(("cca", "infonce", "kept", "l2rm"), ("vse",), ("image",), (0.4, 0.8), (0, 1)),
        Grid(("cca", "l2rm"), ("saf",), ("image",), (0.8,), (1, 2)),
    ),
    epochs=(2, 3),
    needs_path=False,
)


def test_cells_of_a_suite():
    found = cells(SUITE, None)
    names = [cell.name for cell in found]
    assert len(names) == len(set(names))
    # Seed by seed; the linear row has its own head, and stands once though two grids have it.
    assert [cell.config.seed for cell in found] == sorted(cell.config.seed for cell in found)
    assert names[:4] == [
        "cca-linear-image0.4-seed0", "infonce-vse-image0.4-seed0", "kept-vse-image0.4-seed0",
        "l2rm-vse-image0.4-seed0",
    ]  # fmt: skip
    assert names.count("cca-linear-image0.8-seed1") == 1 and "l2rm-saf-image0.8-seed2" in names
    configs = {cell.name: cell.config for cell in found}
    infonce, l2rm = configs[names[1]], configs[names[3]]
    assert infonce.mismatch.seed == infonce.seed == 0
    assert (l2rm.train.warmup_epochs, l2rm.train.epochs) == (2, 3)
    differ = {key for key, value in flat(l2rm).items() if flat(infonce)[key] != value}
    assert differ == {"method"}
    # Four of five pairs are dropped, so the epochs are five times as many.
    assert total_epochs(configs["kept-vse-image0.8-seed0"]) == 5 * total_epochs(infonce)


@pytest.mark.parametrize("name", suite_names())
def test_suites(name):
    suite = find_suite(name)
    some = [grid._replace(seeds=grid.seeds[:1], rates=grid.rates[:1]) for grid in suite.grids]
    needed = suite.needs_path, suite.needs_pretrained
    found = cells(suite._replace(grids=some), *(Path("DIR") if each else None for each in needed))
    assert {cell.row for cell in found} == {row for grid in suite.grids for row in grid.rows}
    for cell in {cell.row: cell for cell in found}.values():
        check_settings(cell.config)


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError, match=r"--suite=flickr: expected one of .*flickr8k-full"):
        find_suite("flickr")
    with pytest.raises(ConfigError, match="no --path, expected --path=DIR"):
        cells(find_suite("flickr8k"), None)
    with pytest.raises(ConfigError, match="no --pretrained, expected --pretrained=DIR"):
        cells(find_suite("flickr8k-pretrained"), Path("DIR"))
    with pytest.raises(ConfigError, match="--pretrained=BERT, expected none"):
        cells(SUITE, None, Path("BERT"))
    with pytest.raises(ConfigError, match="--path=DIR, expected none"):
        cells(SUITE, Path("DIR"))
    found = cells(SUITE, None)
    chosen = benchmark.select(found, {"row": ["l2rm"], "rate": [0.8], "seed": None})
    assert [cell.name for cell in chosen] == [
        "l2rm-vse-image0.8-seed0", "l2rm-vse-image0.8-seed1", "l2rm-saf-image0.8-seed1",
        "l2rm-saf-image0.8-seed2",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"--rate=0.5: the suite has none, expected of 0.4, 0.8"):
        benchmark.select(found, {"rate": [0.5]})


SUITE_FILE = """
from experiments.benchmark.suite import Grid, Row, Suite

SUITE = Suite(
    config="scenes:quick",
    rows={
        "focal": Row({"method": "focal", "own.gamma": 1.5}),
        "cca": Row({"method": "cca"}),
    },
    grids=(Grid(("focal", "cca"), ("vse",), ("image",), (0.4,), (0,)),),
    settings={"data.scenes_train": 20, "data.scenes_dev": 5, "data.scenes_test": 5,
              "model.embed_dim": 8, "train.batch_size": 20},
    epochs=(1, 1),
    needs_path=False,
)
"""
PLUGIN = "l2rm_jax.methods.example.focal"


@pytest.fixture
def suite_file(tmp_path) -> Path:
    file = tmp_path / "own_suite.py"
    file.write_text(SUITE_FILE)
    return file


@pytest.mark.parametrize("flag", [f"--plugins={PLUGIN}", f"--set=plugins={PLUGIN}"])
def test_a_suite_of_ones_own_with_a_plugin(suite_file, tmp_path, monkeypatch, flag):
    found = []
    monkeypatch.setattr(benchmark, "run_cells", lambda chosen, *_: found.extend(chosen) or [])
    command(monkeypatch, benchmark, f"--suite={suite_file}", f"--out={tmp_path}", flag)
    assert [cell.name for cell in found] == [
        "focal-vse-image0.4-seed0", "cca-linear-image0.4-seed0",
    ]  # fmt: skip
    config = found[0].config
    assert config.plugins == (PLUGIN,) and config.own.gamma == 1.5
    check_settings(config)


def test_a_suite_file_may_name_its_plugins(suite_file):
    text = SUITE_FILE.replace("settings={", f'settings={{"plugins": ("{PLUGIN}",), ')
    suite_file.write_text(text)
    assert cells(find_suite(str(suite_file)), None)[0].config.own.gamma == 1.5
    suite_file.write_text(SUITE_FILE)
    with pytest.raises(ConfigError, match=r"own\.gamma"):  # without its plug-in
        cells(find_suite(str(suite_file)), None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "no such file"),
        ("SUITE = 3", "found SUITE of type int, expected a Suite"),
        ("", "found SUITE of type NoneType"),
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("def", "SyntaxError"),
    ],
)
def test_a_file_without_a_suite(source, message, tmp_path):
    file = tmp_path / "wrong.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(ConfigError, match=rf"--suite=.*wrong\.py: .*{message}"):
        find_suite(str(file))


# A run that notes when it starts and ends, and on which core. `seconds` and `status` are its own.
STAND_IN = """
import glob, json, os, signal, sys, time
place, seconds, status = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
def stop(*_):
    open(place + "/saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
open(place + "/started", "w").close()
def started():
    return len(glob.glob(os.path.dirname(place) + "/*/started"))
time.sleep(seconds)
for _ in range(300 * place.endswith("/one") * (os.cpu_count() > 1)):
    if started() == 1:
        time.sleep(0.1)
if not status:
    result = {"seconds": seconds, "started": started(), "cores": cores}
    json.dump(result, open(place + "/results.json", "w"))
else:
    print("error: the data are wrong")
sys.exit(status)
"""


@pytest.fixture
def stand_in(monkeypatch):
    """Processes that wait instead of training; a row `bad` fails."""

    def train_command(workdir: Path) -> list[str]:
        bad = int(workdir.name.startswith("bad"))
        seconds = "30" if workdir.name.startswith("slow") else "0.4"
        return [sys.executable, "-c", STAND_IN, str(workdir), seconds, str(bad)]

    monkeypatch.setattr(pool, "train_command", train_command)
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.02)


def named(*names: str) -> list[Cell]:
    return [Cell(name, name, load_config("scenes")) for name in names]


def test_pool_trains_side_by_side_and_goes_on_after_a_failure(stand_in, tmp_path, capfd):
    found = named("one", "bad", "two", "three")
    cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else [0, 1]
    failures = pool.run_cells(found, tmp_path, cores)
    assert [(each.workdir.name, each.reason) for each in failures] == [
        ("bad", "error: the data are wrong")
    ]
    results = {
        name: json.loads((tmp_path / name / "results.json").read_text())
        for name in ("one", "two", "three")
    }
    if len(cores) == 2:  # the first waits half a minute for another to start beside it
        assert results["one"]["started"] > 1
    if hasattr(os, "sched_getaffinity"):
        assert all(len(each["cores"]) == 1 for each in results.values())
    cost = json.loads((tmp_path / "one" / "cost.json").read_text())
    assert cost["peak_bytes"] > 1e6 and cost["machine"]
    assert "3 of 4 runs done" in capfd.readouterr().out
    # Finished runs are not trained again.
    ended = (tmp_path / "one" / "results.json").stat().st_mtime_ns
    assert [each.workdir.name for each in pool.run_cells(found, tmp_path, cores)] == ["bad"]
    assert (tmp_path / "one" / "results.json").stat().st_mtime_ns == ended


def test_pool_refuses_a_directory_with_another_run(stand_in, tmp_path):
    leave_run(load_config("scenes"), tmp_path / "one", [1.0, 2.0])
    other = load_config("scenes")
    other.optim.learning_rate = 0.5
    with pytest.raises(ConfigError, match="learning_rate"):
        pool.run_cells([*named("new"), Cell("one", "one", other)], tmp_path, [0])
    assert not (tmp_path / "new").exists()


def test_a_stopped_pool_lets_its_runs_save(stand_in, tmp_path, monkeypatch):
    def interrupt(seconds: float) -> None:
        if (tmp_path / "slow" / "started").exists():
            raise KeyboardInterrupt
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=interrupt)
    monkeypatch.setattr(pool, "time", clock)
    with pytest.raises(KeyboardInterrupt):
        pool.run_cells(named("slow"), tmp_path, [0])
    assert (tmp_path / "slow" / "saved").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process of its parent's end"
)
def test_runs_save_and_stop_when_the_command_is_killed(tmp_path):
    lines = (
        "from pathlib import Path",
        "from experiments.benchmark import pool",
        "from tests.experiments.test_benchmark import STAND_IN, named",
        "import sys",
        "pool.train_command = lambda at: [sys.executable, '-c', STAND_IN, str(at), '60', '0']",
        f"pool.run_cells(named('slow'), Path({str(tmp_path)!r}), [0])",
    )
    script = "\n".join(lines)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])

    def wait_for(name: str) -> bool:
        for _ in range(600):
            if (tmp_path / "slow" / name).exists():
                return True
            time.sleep(0.1)
        return False

    assert wait_for("started")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_for("saved")


def test_student_interval_of_paired_differences():
    one, other = {0: 5.0, 1: 7.0, 2: 6.5, 9: 100.0}, {0: 4.0, 1: 4.0, 2: 6.0, 8: 0.0}
    found = paired_difference(one, other)
    test = stats.ttest_rel([5.0, 7.0, 6.5], [4.0, 4.0, 6.0])
    interval = test.confidence_interval(0.95)
    np.testing.assert_allclose(found[:3], (1.5, interval.low, interval.high), rtol=1e-12)
    assert found.pairs == 3
    assert paired_difference(one, {8: 1.0}) is None
    assert paired_difference({0: 3.0}, {0: 1.0}) == (2.0, -np.inf, np.inf, 1)


def test_what_is_close_to_the_best():
    assert mean_of([4.0]) == (4.0, 0.0, 0.0, 1)
    means = [mean_of([10.0, 14.0]), None, Mean(10.5, 1, 1, 3), Mean(9.9, 1, 1, 3)]
    assert within_error(means) == ["best", "", "close", ""]  # its standard error is 2
    assert within_error([Mean(3, 0, 0, 1), Mean(3, 0, 0, 1)]) == ["best", ""]
    assert within_error([None]) == [""]


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A suite with some finished runs; the command finds it under the name `made`."""
    found = cells(SUITE, None)
    for number, cell in enumerate(found):
        if "saf" not in cell.name:
            config = cell.config.copy_and_resolve_references()
            leave_run(config, tmp_path / "made" / cell.name, [100.0 + number, 90.0])
    monkeypatch.setattr(benchmark, "find_suite", lambda _: SUITE)
    return tmp_path


def report(monkeypatch, out: Path, *flags: str) -> None:
    command(monkeypatch, benchmark, "--suite=made", f"--out={out}", "--report", *flags)


def test_report(finished, monkeypatch):
    report(monkeypatch, finished, f"--csv={finished / 'kept.csv'}")
    rows = read_csv(finished / "made" / "results.csv")
    assert rows == read_csv(finished / "kept.csv") and len(rows) == 17
    row = next(row for row in rows if row["run"] == "l2rm-vse-image0.8-seed1")
    assert (row["split"], row["test_rsum"], row["networks"]) == ("loss", "501.00", "1")
    assert row["split_precision"] == "0.4500" and row["peak_mb"] == ""
    text = (finished / "made" / "report.md").read_text()
    assert "17 of 19 runs are finished" in text
    # All rows are equal: the first is the best, the others are within its error.
    assert "| cca | 1 | **500.5 ±0.7** |" in text and "| l2rm | 1 | *500.5 ±0.7* |" in text
    assert "## Test rSum, ahead of infonce, protocol image, head vse" in text
    html = (finished / "made" / "report.html").read_text()
    assert html.count("<svg") == 3 and "http://" not in html.replace("http://www.w3.org", "")


def test_kept_rows_outlive_their_runs(finished, monkeypatch):
    kept = finished / "kept.csv"
    report(monkeypatch, finished, f"--csv={kept}")
    before = read_csv(kept)
    (finished / "made" / before[0]["run"] / "results.json").unlink()
    report(monkeypatch, finished, f"--csv={kept}")
    assert read_csv(kept) == before
    asked = []
    monkeypatch.setattr(benchmark, "run_cells", lambda chosen, *_: asked.extend(chosen) or [])
    flags = "--suite=made", f"--out={finished}", f"--csv={kept}"
    command(monkeypatch, benchmark, *flags)
    assert len(asked) == 2 and all("saf" in cell.name for cell in asked)  # none twice
    kept.write_text("run,seed\nx,1\n")
    with pytest.raises(
        SystemExit, match=r"kept.csv: columns \['run', 'seed'\], expected run, data"
    ):
        report(monkeypatch, finished, f"--csv={kept}")


def test_tables_from_kept_rows(finished, monkeypatch):
    report(monkeypatch, finished, f"--csv={finished / 'kept.csv'}")
    rows = records.read_records(finished / "kept.csv")
    [validation, test] = (
        tables.recall_tables(rows)[:1]
        + [table for table in tables.recall_tables(rows) if table.title.startswith("Test")][:1]
    )
    assert validation.title == "Validation rSum, protocol image, head vse"
    assert validation.columns == ("row", "networks", "0.4 (2)", "0.8")  # not all rows twice
    assert [line[0].text for line in test.rows] == ["cca", "infonce", "kept", "l2rm"]
    values = [float(row["dev_rsum"]) for row in rows if row["run"].startswith("l2rm-vse-image0.4")]
    cell = validation.rows[3][2]
    assert cell == (f"{np.mean(values):.1f} ±{np.std(values, ddof=1):.1f}", "best")
    mark = f"<!-- table: {finished / 'kept.csv'}, {test.title} -->\n<!-- end table -->"
    assert page.markdown_table(test) in updated(mark, Path("page.md"))
    whole = [{**row, "seed": str(seed)} for row in rows for seed in range(3)]
    some = [row for row in whole if (row["row"], row["rate_asked"]) != ("l2rm", "0.8")]
    assert {row["row"] for row in records.complete(some)} == {"cca", "infonce", "kept"}
    assert records.complete(rows) == []  # of two seeds
    with pytest.raises(DataError, match="no table 'Nothing', expected of Validation rSum"):
        updated(mark.replace(test.title, "Nothing"), Path("page.md"))


@pytest.mark.slow
def test_a_plugin_is_trained_and_reported(suite_file, tmp_path, monkeypatch):
    flags = f"--suite={suite_file}", f"--plugins={PLUGIN}", f"--out={tmp_path}"
    command(monkeypatch, benchmark, *flags)
    rows = read_csv(tmp_path / "own_suite" / "results.csv")
    assert [row["row"] for row in rows] == ["focal", "cca"]
    assert all(float(row["peak_mb"]) > 100 and row["commit"] for row in rows)
    assert "# Benchmark own_suite" in (tmp_path / "own_suite" / "report.md").read_text()
