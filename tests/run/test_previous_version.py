"""A run directory of version 0.1.0, stopped within an epoch, goes on and is evaluated today.

`run_of_0.1.0.tar.xz` holds that directory (`run/`), and what that version wrote to `metrics.jsonl`
and `results.json` when it continued the run itself.
"""

import json
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

from l2rm_jax.config import flat
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.run.config_file import read_config
from l2rm_jax.train import train

pytestmark = pytest.mark.usefixtures("shared_programs")
ARCHIVE = Path(__file__).with_name("run_of_0.1.0.tar.xz")
STOPPED_AT = 9  # the last step that version 0.1.0 took in `run/`


def read_records(file: Path) -> list[dict]:
    """Records of a log without the time that they were written."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: x for key, x in record.items() if key != "seconds"} for record in records]


@pytest.fixture(scope="module")
def continued(tmp_path_factory) -> Path:
    """The unpacked archive, whose run has been continued to its end."""
    directory = tmp_path_factory.mktemp("previous")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    workdir = directory / "run"
    train(read_config(workdir), workdir, Replicas(jax.devices()[:1]))
    return directory


@pytest.mark.slow
def test_it_goes_on_where_it_stopped_with_the_same_numbers(continued):
    """Processors round differently, and transport magnifies that: numbers agree to 1%."""
    *ours, last = read_records(continued / "run" / "metrics.jsonl")
    assert last["sign"] == "ends_at_chance"  # which the older version did not say
    theirs = read_records(continued / "finished_metrics.jsonl")
    assert [(r["kind"], r["step"]) for r in ours] == [(r["kind"], r["step"]) for r in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            if one["step"] <= STOPPED_AT or not isinstance(value, float):
                assert one[key] == value, key
            elif key.startswith(("loss", "grad_norm", "cost")):
                assert one[key] == pytest.approx(value, rel=0.01, abs=1e-4), key


@pytest.mark.slow
def test_its_results_have_the_same_fields_and_table(continued):
    ours = json.loads((continued / "run" / "results.json").read_text())
    theirs = json.loads((continued / "finished_results.json").read_text())
    assert ours.keys() == theirs.keys()
    own, other = flat(ours["config"]), flat(theirs["config"])
    assert {key: own.get(key) for key in other} == other  # new fields may have been added
    row, _ = evaluate_runs([continued / "run"]).values()
    [expected] = theirs["test"].values()
    assert row.keys() == expected.keys() and row == next(iter(ours["test"].values()))
    # Of eight images, one more in a place is up to 25 of rSum.
    assert np.isclose(row["rsum"], expected["rsum"], atol=50)
