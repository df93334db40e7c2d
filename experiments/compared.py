"""Every method that trains by gradients on `scenes`, as one table averaged over seeds.

python -m experiments.compared --out=runs/compared
python -m experiments.compared --out=runs/compared --method=ncr,sps --seed=0
python -m experiments.compared --out=runs/compared --report --csv=compared.csv

A small model: head `vse`, 500 pictures, mismatch rate 0.4 per image, the same epochs, batches and
learning rate for all (`crcl`: two short schedules besides), no augmentation. `x2` are two networks
of a method that needs one. The command continues what was stopped. --csv writes a row for each
method: mean and standard deviation over the seeds, and the mean difference from `triplet` of the
same seed on the test split with its standard error. Validation chooses the epoch.
"""

import argparse
import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.crossfit import values_of
from experiments.runs import epoch_records
from experiments.sweep import result_row, run_grid, start
from l2rm_jax.config import set_epochs
from l2rm_jax.run.config_file import load_config, with_changes

SEEDS = (0, 1, 2)
BASELINE = "triplet"
METHODS = (
    BASELINE, "infonce", "l2rm", "l2rm x2", "rcl", "rcsl_nc", "decl", "crcl", "ncr", "bicro", "sps"
)  # fmt: skip
SIZES = {"data.scenes_train": 500, "model.head": "vse", "mismatch.rate": 0.4, "loss.tau": 0.07}
WARMUP, EPOCHS = 6, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path, help="directory of the runs")
    parser.add_argument("--method", type=values_of(str), default=METHODS)
    parser.add_argument("--seed", type=values_of(int), default=SEEDS)
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--csv", type=Path, help="write the table of the finished runs")
    flags = parser.parse_args()
    if not flags.report:
        run_grid(named_configs(flags.method, flags.seed), flags.out)
    rows = table(finished(flags.out))
    print("\n".join(",".join(map(str, row.values())) for row in rows))
    if flags.csv and rows:
        with flags.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


def named_configs(methods: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, ConfigDict]]:
    """Yield name and config of the runs, seed by seed."""
    for seed in seeds:
        for method in methods:
            name, is_two, _ = method.partition(" x2")
            changes = {**SIZES, "method": name, "seed": seed, "mismatch.seed": seed}
            config = with_changes(load_config("scenes"), changes)
            config.train.networks = 2 if is_two else 0
            set_epochs(config, WARMUP, EPOCHS)
            config.crcl.schedules = (2, 2)
            yield f"{method.replace(' ', '-')}-seed{seed}", config


def finished(out: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the row of each finished run, by method and seed."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for path in sorted(out.glob("*/results.json")):
        method, _, seed = path.parent.name.rpartition("-seed")
        results = json.loads(path.read_text())
        row = result_row(results, epoch_records(path.parent))
        rows.setdefault(method.replace("-x2", " x2"), {})[int(seed)] = {
            **row,
            "networks": results.get("networks", 1),
        }
    return rows


def table(runs: dict[str, dict[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each method, in the order of `METHODS`."""
    rows = []
    for method in (name for name in METHODS if name in runs):
        own, baseline = runs[method], runs.get(BASELINE, {})
        shared = sorted(own.keys() & baseline.keys())
        gains = [own[seed]["rsum"] - baseline[seed]["rsum"] for seed in shared]
        dev, test = ([row[key] for row in own.values()] for key in ("dev_rsum", "rsum"))
        rows.append(
            {
                "method": method,
                "networks": next(iter(own.values()))["networks"],
                "seeds": len(own),
                "validation rSum": _spread(dev),
                "test rSum": _spread(test),
                "test, gain over triplet": "" if method == BASELINE else _error(gains),
            }
        )
    return rows


def _spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{deviation}"


def _error(values: Sequence[float]) -> str:
    """Mean and its standard error."""
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):+.1f}{error}" if len(values) else ""


if __name__ == "__main__":
    start(main)
