"""Run directories as tables read them: finished or not, and grouped over seeds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from l2rm_jax.config import flat
from l2rm_jax.errors import DataError, first_line
from l2rm_jax.run.config_file import CONFIG_FILE, read_config

RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
SEEDS = ("seed", "mismatch.seed")  # runs that differ only in these may be averaged


class Run(NamedTuple):
    """A run, finished or not, and its results so far.

    Attributes:
      workdir: its directory.
      config: the config that it was started with.
      records: validations in order, one for each epoch so far.
      results: the content of `results.json`; None until all epochs of `config` are done and tested.
    """

    workdir: Path
    config: ConfigDict
    records: list[dict[str, Any]]
    results: dict[str, Any] | None

    @property
    def epochs(self) -> int:
        """Number of epochs that the config asks for."""
        return total_epochs(self.config)

    @property
    def done(self) -> int:
        """Number of finished epochs."""
        return self.records[-1]["epoch"] if self.records else 0

    @property
    def best(self) -> dict[str, Any] | None:
        """The record of the best validation; None before the first one."""
        return max(self.records, key=lambda record: record["rsum"], default=None)

    @property
    def test(self) -> dict[str, Any] | None:
        """Test recalls under the first protocol; None until the run is finished."""
        return self.results and next(iter(self.results["test"].values()))


def find_runs(directory: Path) -> list[Path]:
    """Return the directories with a config, `directory` and all below it, in order of their names.

    Raises:
      DataError: there is no such directory, or it holds no run.
    """
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory, expected a run or a directory of runs")
    runs = sorted(file.parent for file in directory.rglob(CONFIG_FILE))
    if not runs:
        raise DataError(f"{directory}: no {CONFIG_FILE} there or below, so it holds no run")
    return runs


def read_run(workdir: Path) -> Run:
    """Read the config, the validations and the results of a run.

    Raises:
      ConfigError: as `read_config`.
      DataError: a record or the results cannot be read.
    """
    config = read_config(workdir)
    records = epoch_records(workdir)
    return Run(workdir, config, records, _read_results(workdir / "results.json", config))


def epoch_records(workdir: Path) -> list[dict[str, Any]]:
    """Return the validations of `metrics.jsonl` without a line that is still being written.

    They are the records of the kind `epoch`; none if the file does not exist yet.

    Raises:
      DataError: a line is not a record.
    """
    validations = read_log(workdir, ("epoch",))
    return [{**record, "rsum": float(record["rsum"])} for record in validations]


def read_log(workdir: Path, kinds: Iterable[str]) -> list[dict[str, Any]]:
    """Return the records of some kinds in `metrics.jsonl`, but for a line being written.

    Raises:
      DataError: a line is not a record, or a validation has no rSum.
    """
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    text = _read_text(path)
    records = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
            if record["kind"] == "epoch":
                float(record["rsum"])
            if record["kind"] in kinds:
                records.append(record)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"{path}:{number}: not a record of a run: {first_line(error)}"
            ) from error
    return records


def _read_results(path: Path, config: ConfigDict) -> dict[str, Any] | None:
    """Read `results.json`; None if it is missing, or older than the epochs that `config` adds."""
    if not path.exists():
        return None
    text = _read_text(path)
    try:
        results = json.loads(text)
        if total_epochs(ConfigDict(results["config"])) != total_epochs(config):
            return None
        test = next(iter(results["test"].values()))
        for value in (results["seconds"], *(test[name] for name in RECALLS)):
            float(value)
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        raise DataError(f"{path}: not the results of a run: {first_line(error)}") from error
    return results


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from error


def total_epochs(config: ConfigDict) -> int:
    """Return the number of epochs that a config asks for, the warm-up included."""
    return config.train.warmup_epochs + config.train.epochs


def seeds(run: Run) -> tuple[int, ...]:
    """Return the values of the fields `SEEDS` of a run."""
    values = flat(run.config)
    return tuple(values[key] for key in SEEDS)


def differing_fields(configs: Sequence[Mapping[str, Any]], ignore: Iterable[str]) -> list[str]:
    """Return the fields in which flat configs differ, but for those to ignore.

    A field that only some of them have (a plug-in's own setting) differs.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if key not in ignore and len({str(config.get(key)) for config in configs}) > 1
    ]
