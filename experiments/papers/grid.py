"""Every method with every head on the built-in data set, as one table.

python -m experiments.papers.grid --quick --json=grid.json
python -m experiments.papers.grid --json=grid.json --vary mismatch.rate=0,0.4,0.8
python -m experiments.papers.grid --json=grid.json --vary method=rcsl_nc,l2rm \
    --vary model.head=saf,vse

RCSL must be told which images are paired (protocol semi_paired): at a mismatch rate r, it is told
that a share 1 - r is paired and the rest is not. The grid stops and continues like
`experiments.papers.sweep`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.csv_rows import write_rows
from experiments.papers import sweep
from experiments.papers.runs import RECALLS, epoch_records
from l2rm_jax.config import NEEDED_HEADS
from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import METHODS
from l2rm_jax.models import HEADS
from l2rm_jax.run.results import write_json

CONFIG = Path(__file__).parents[2] / "configs" / "scenes.py"
ONE_EPOCH = {
    "train.warmup_epochs": 0,
    "train.epochs": 1,
    "crcl.schedules": (),
    "co_teaching.mismatched_epoch": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little data, one epoch per cell")
    parser.add_argument("--json", required=True, type=Path, help="file to write the cells to")
    parser.add_argument("--csv", type=Path, help="file to write the table to")
    parser.add_argument("--out", type=Path, help="directory of the runs (runs/grid[-quick])")
    sweep.add_settings(parser, "vary", "set")
    arguments = parser.parse_args()
    quick = arguments.quick
    config = sweep.load_config(f"{CONFIG}:{'quick' if quick else 'long'}")
    complete = {"method": [*METHODS], "model.head": [*HEADS]}
    for key in complete.keys() & arguments.set.keys():
        raise ConfigError(f"--set {key}: the grid has all of them; expected --vary {key}=...")
    vary = {**complete, **arguments.vary}
    settings = {**(ONE_EPOCH if quick else {}), **arguments.set}
    configs = [each for _, each in sweep.grid(config, vary, settings)]
    runs = [named_config(each, vary) for each in configs if fits(each.method, each.model.head)]
    workdirs = sweep.run_grid(
        runs, arguments.out or Path("runs", "grid-quick" if quick else "grid")
    )
    cells = [cell(workdir) for workdir in workdirs]
    write_json(arguments.json, {"cells": cells})
    rows = table(cells)
    if arguments.csv:
        write_rows(arguments.csv, rows)
    for line in (rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)):
        print(f"| {' | '.join(line)} |")


def fits(method: str, head: str) -> bool:
    """Whether the method works with the head; only some need one of their own."""
    return NEEDED_HEADS.get(method, head) == head


def named_config(config: ConfigDict, vary: Mapping[str, Sequence]) -> tuple[str, ConfigDict]:
    """Return name and config of a run, with paired images for RCSL."""
    if config.method == "rcsl":
        images = round((1 - config.mismatch.rate) * config.data.scenes_train)
        paired = {"mismatch.protocol": SEMI_PAIRED, "mismatch.paired_images": images}
        config = sweep.with_changes(config, paired)
    return sweep.run_name(config, vary), config


def cell(workdir: Path) -> dict[str, Any]:
    """Return the record of a finished run that --json keeps."""
    result = json.loads((workdir / "results.json").read_text())
    row = sweep.result_row(result, epoch_records(workdir))
    names = ("method", "head", "protocol", "rate_asked", "seed", *RECALLS, "seconds")
    return {"run": workdir.name, **{name: row[name] for name in names}}


def table(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return rows of the test rSum, by method and rate, with a column for each head.

    A cell is the mean over seeds.

    Raises:
      ConfigError: the runs of a cell differ in more than the seed.
    """
    heads = list(dict.fromkeys(cell["head"] for cell in cells))
    lines = list(dict.fromkeys(map(_line, cells)))

    def rsum(method: str, rate: str, head: str) -> str:
        runs = [c for c in cells if (*_line(c), c["head"]) == (method, rate, head)]
        if len({cell["seed"] for cell in runs}) < len(runs):
            raise ConfigError(
                f"the cells are in --json, but there is no table: {method}, {head}, rate {rate}: "
                f"the runs {', '.join(cell['run'] for cell in runs)} differ in more than the seed"
            )
        return f"{sum(cell['rsum'] for cell in runs) / len(runs):.1f}" if runs else ""

    return [
        {"method": line[0], "rate": line[1], **{head: rsum(*line, head) for head in heads}}
        for line in lines
    ]


def _line(cell: Mapping[str, Any]) -> tuple[str, str]:
    rate = cell["rate_asked"]
    return cell["method"], "of a file" if rate is None else f"{rate:g}"


if __name__ == "__main__":
    sweep.start(main)
