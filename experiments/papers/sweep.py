"""Train a grid of configs on one data set and keep one CSV row per run.

python -m experiments.papers.sweep --config=scenes:long --out=runs/scenes \
    --vary method=l2rm,triplet --vary mismatch.rate=0,0.6 --vary seed=0,1,2
python -m experiments.papers.sweep --config=scenes:long --out=runs/rho \
    --vary l2rm.rho=0.1,0.3,0.5 --set train.epochs=6
python -m experiments.papers.sweep --config=scenes:long --out=runs/mine \
    --plugins=my_method --vary method=my_method,triplet

KEY is a config field of `l2rm_jax/config`. `seed` also sets `mismatch.seed`, unless
`mismatch.seed` is given. Every run has its own directory under --out. Repeat the command to
continue a sweep that was stopped: finished runs are skipped, an interrupted run continues from its
last checkpoint. `results.csv` has a row for every finished run under --out, and a column for every
config field in which the runs differ.
"""

import gc
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from experiments.papers.runs import RECALLS, differing_fields, epoch_records
from experiments.script import add_settings, load_base, new_parser, start, write_rows
from l2rm_jax.config import flat
from l2rm_jax.data import mismatch
from l2rm_jax.run.config_file import check_workdir, with_changes
from l2rm_jax.train import train

COLUMNS = (
    "data", "method", "head", "protocol", "rate_asked", "true_rate", "kept_share", "filter",
    "filter_kept", "seed", "evaluation", *RECALLS,
    "best_epoch", *(f"dev_{name}" for name in RECALLS),
    "split_accuracy", "split_precision", "split_auroc", "seconds", "device", "jax",
)  # fmt: skip
# Config fields that `COLUMNS` and a run's name already hold, in another form.
ALREADY_SHOWN = ("data.name", "method", "model.head", "mismatch.protocol", "mismatch.rate", "seed")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:VARIANT")
    parser.add_argument("--out", required=True, type=Path, help="directory of the sweep")
    add_settings(parser, "vary", "set")
    arguments = parser.parse_args()
    config, settings = load_base(arguments.config, arguments.set)
    run_grid(grid(config, arguments.vary, settings), arguments.out)


def grid(
    base: ConfigDict, vary: Mapping[str, Sequence], settings: Mapping[str, Any]
) -> Iterator[tuple[str, ConfigDict]]:
    """Yield name and config of every run of a grid; the last key of `vary` changes fastest.

    Args:
      base: the config that all runs start from.
      vary: the values of each varied config field; every combination makes a run.
      settings: config fields that are the same in all runs.

    Raises:
      ConfigError: a config field does not exist, or a value has the wrong type.
    """
    for values in itertools.product(*vary.values()):
        changes = {**settings, **dict(zip(vary, values, strict=True))}
        if "seed" in changes:
            changes.setdefault("mismatch.seed", changes["seed"])
        config = with_changes(base, changes)
        yield run_name(config, vary), config


def run_name(config: ConfigDict, vary: Iterable[str]) -> str:
    """Return the name of a run, such as `l2rm-saf-image0.4-seed0-l2rm.rho0.3`."""
    values = flat(config)
    others = [key for key in vary if key not in ALREADY_SHOWN]
    more = (f"{key}{values[key]}".replace("/", "_") for key in others)
    noise = mismatch.label(config.mismatch)
    return "-".join([config.method, config.model.head, noise, f"seed{config.seed}", *more])


def run_grid(runs: Iterable[tuple[str, ConfigDict]], out: Path) -> list[Path]:
    """Train the unfinished runs one after the other and keep `results.csv` up to date.

    Args:
      runs: the name of each run, which is its directory under `out`, and its config.
      out: directory of the grid. Several processes may share it if they train different runs.

    Returns:
      The directories of the runs.

    Raises:
      L2RMError: a run failed; or a directory holds a run with another config, which is checked
        before anything is trained.
    """
    configs = {out / name: config for name, config in runs}
    for workdir, config in configs.items():
        check_workdir(workdir, config)
    for workdir, config in configs.items():
        if not (workdir / "results.json").exists():
            train(config, workdir)
            # Compiled programs of finished runs would add up until memory runs out.
            jax.clear_caches()
            gc.collect()
        write_csv(out)
    return list(configs)


def write_csv(out: Path) -> None:
    """Write `results.csv`, which has a row for every finished run under `out`."""
    workdirs = sorted(path.parent for path in out.glob("*/results.json"))
    results = [json.loads((workdir / "results.json").read_text()) for workdir in workdirs]
    configs = [flat(result["config"]) for result in results]
    differ = differing_fields(configs, ALREADY_SHOWN)
    rows = [
        {**config, **result_row(result, epoch_records(workdir))}
        for workdir, result, config in zip(workdirs, results, configs, strict=True)
    ]
    write_rows(out / "results.csv", rows, [*COLUMNS, *differ])


def result_row(result: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the CSV row of a finished run: test recalls, best epoch, last split.

    Args:
      result: the content of `results.json`.
      records: the validations of the run, as `epoch_records` returns them.
    """
    best = max(records, key=lambda record: record["rsum"])
    validation = {f"dev_{name}": best[name] for name in RECALLS}
    evaluation, test = next(iter(result["test"].items()))
    return {
        **records[-1], **result["versions"], **result, **test, **validation,
        "best_epoch": best["epoch"], "evaluation": evaluation,
    }  # fmt: skip


if __name__ == "__main__":
    start(main)
