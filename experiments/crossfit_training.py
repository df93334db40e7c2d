"""Train on Flickr8k with the split of cross-fitting, and without it.

python -m experiments.crossfit_training --path=DIR --out=runs/crossfit_training
python -m experiments.crossfit_training --path=DIR --out=runs/crossfit_training --report
python -m experiments.crossfit_training --path=DIR --out=runs/crossfit_training \
    --method=l2rm --rate=0.8 --seed=0,1

`infonce` trains on all pairs, and on those that cross-fitting keeps, with more epochs, so that the
updates are about as many. `l2rm` and `rcsl_nc` split the pairs by their own loss, and by
cross-fitting. All with the head `aggregate`, 2000 images, the first 200 validation images. The
command continues what was stopped; --csv writes a row for each finished run.
"""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.crossfit import DEV_IMAGES, KEPT, equal_updates, values_of
from experiments.runs import epoch_records
from experiments.sweep import result_row, run_grid, run_name, start
from l2rm_jax.run.config_file import load_config, with_changes

SPLITS = {"loss": {"split.by": "loss"}, "crossfit": {"split.by": "crossfit"}}
USES: Mapping[str, Mapping[str, dict]] = {
    "infonce": {"all": {}, "kept": KEPT},
    "l2rm": SPLITS,
    "rcsl_nc": SPLITS,
}
COLUMNS = {
    "method": "method",
    "head": "head",
    "protocol": "protocol",
    "rate_asked": "asked",
    "seed": "seed",
    "dev_rsum": "validation",
    "rsum": "test",
    "best_epoch": "best_epoch",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", required=True, type=Path, help="directory of the data")
    parser.add_argument("--out", required=True, type=Path, help="directory of the runs")
    parser.add_argument("--method", type=values_of(str), default=[*USES])
    parser.add_argument("--use", type=values_of(str), help="all, kept, loss, crossfit (all four)")
    parser.add_argument("--rate", type=values_of(float), default=[0.4, 0.6, 0.8])
    parser.add_argument("--seed", type=values_of(int), default=[0, 1, 2])
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--csv", type=Path, help="write the finished runs")
    flags = parser.parse_args()
    if not flags.report:
        cells = product(flags.seed, flags.rate, flags.method)
        run_grid(named_configs(flags.path, cells, flags.use), flags.out)
    rows = finished(flags.out)
    print("\n".join(",".join(map(str, row.values())) for row in rows))
    if flags.csv:
        with flags.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["use", *COLUMNS.values()])
            writer.writeheader()
            writer.writerows(rows)


def named_configs(
    path: Path, cells: Iterator[tuple[int, float, str]], uses: Sequence[str] | None
) -> Iterator[tuple[str, ConfigDict]]:
    """Yield name and config of the runs.

    Args:
      path: directory of the data.
      cells: seed, rate and method.
      uses: what to compare; None: all that a method has.
    """
    for seed, rate, method in cells:
        data = {"data.path": str(path), "data.dev_images": DEV_IMAGES, "seed": seed}
        mismatch = {"mismatch.rate": rate, "mismatch.seed": seed}
        model = {"method": method, "model.head": "aggregate"}
        config = with_changes(load_config("flickr8k"), {**data, **mismatch, **model})
        for use, changes in USES[method].items():
            if uses is None or use in uses:
                more = equal_updates(config, 1 - rate) if use == "kept" else {}
                yield f"{use}-{run_name(config, ())}", with_changes(config, {**changes, **more})


def finished(out: Path) -> list[dict[str, Any]]:
    """Return a row for each finished run, by rate, use, method and seed."""
    rows = []
    for path in sorted(out.glob("*/results.json")):
        row = result_row(json.loads(path.read_text()), epoch_records(path.parent))
        named = {name: row[column] for column, name in COLUMNS.items()}
        named |= {name: round(x, 2) for name, x in named.items() if isinstance(x, float)}
        rows.append({"use": path.parent.name.partition("-")[0], **named})
    return sorted(rows, key=lambda row: (row["asked"], row["method"], row["use"], row["seed"]))


if __name__ == "__main__":
    start(main)
