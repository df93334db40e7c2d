"""The papers' ablation tables: a row for each changed part, on any data set.

python -m experiments.papers.ablations l2rm3 --config=scenes --out=runs/ablations --vary seed=0,1,2
python -m experiments.papers.ablations l2rm3 l2rm4 rcsl6 --config=flickr8k:vectors \
    --set data.path=VECTORS --out=runs/ablations --vary seed=0,1,2 --csv=ablations.csv
python -m experiments.papers.ablations rcsl6 --config=scenes --out=runs/ablations --report

l2rm3: L2RM Tab. 3, at rate 0.6: rematching loss, full transport, mask, learned cost.
l2rm4: L2RM Tab. 4, at rate 0.8: the loss of the warm-up.
rcl4: RCL Tab. 4, NCR*: NCR and BiCro with one network, beside two.
rcsl6: RCSL Tab. 6, a fifth of the training images paired: regulariser, loss of the known pairs,
  mined texts and images.
rcsl3: RCSL Fig. 3, at rate 0.6: the four losses. `experiments.papers.compare --figure` draws the
curves.

Each table has a directory of its own below --out. --set and --vary change any field, also the rate.
Runs stop and continue as in `experiments.papers.sweep`. --report trains nothing and prints the
table of the finished runs.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.csv_rows import write_rows
from experiments.papers.runs import RECALLS, differ_only_in_seed, read_run
from experiments.papers.sweep import add_settings, grid, load_config, run_grid, start
from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.errors import ConfigError
from l2rm_jax.run.config_file import with_changes

NO_MINING = {"rcsl.mining": "none"}
NO_REGULARISER, NO_PAIRED = {"rcsl.regulariser": False}, {"rcsl.paired_loss": False}
# For each table: fields of all rows, and rows with the fields that they change.
TABLES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]] = {
    "l2rm3": (
        {"method": "l2rm", "mismatch.rate": 0.6},
        {
            "L2RM": {},
            "KL divergence": {"l2rm.rematch_loss": "kl"},
            "JS divergence": {"l2rm.rematch_loss": "js"},
            "InfoNCE loss": {"l2rm.rematch_loss": "infonce"},
            "without partial OT": {"l2rm.rho": 1.0},
            "without positives masked": {"l2rm.mask": "none"},
            "without cost function": {"l2rm.cost": "cosine"},
        },
    ),
    "l2rm4": (
        {"method": "l2rm", "mismatch.rate": 0.8},
        {
            "RCE and InfoNCE": {},
            "InfoNCE": {"l2rm.warmup_loss": "infonce"},
            "triplet": {"l2rm.warmup_loss": "triplet"},
        },
    ),
    "rcl4": (
        {"mismatch.rate": 0.4},
        {
            f"{method} x{networks}": {"method": method, "train.networks": networks}
            for method in ("ncr", "bicro")
            for networks in (1, 2)
        },
    ),
    "rcsl6": (
        {"method": "rcsl", "model.head": "aggregate", "mismatch.protocol": SEMI_PAIRED},
        {
            "RCSL": {},
            "without regulariser": NO_REGULARISER,
            "without loss of known pairs": NO_PAIRED,
            "without mined texts": {"rcsl.mining": "images"},
            "without mined images": {"rcsl.mining": "texts"},
            "without mining": NO_MINING,
            "without regulariser and mining": {**NO_REGULARISER, **NO_MINING},
            "without loss of known pairs and mining": {**NO_PAIRED, **NO_MINING},
        },
    ),
    "rcsl3": (
        {"mismatch.rate": 0.6},
        {
            "robust mining": {"method": "rcl", "rcl.loss": "mae"},
            "InfoNCE": {"method": "infonce"},
            "TRL": {"method": "triplet"},
            "TRL-S": {"method": "triplet"},
        },
    ),
}
PAIRED_SHARE = 0.2  # of the training images, in rcsl6, unless mismatch.paired_images is set


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tables", choices=TABLES, nargs="+")
    parser.add_argument("--config", required=True, help="NAME, FILE.py or FILE.py:VARIANT")
    parser.add_argument("--out", required=True, type=Path, help="directory of the runs")
    parser.add_argument("--csv", type=Path, help="file to write the table to")
    parser.add_argument("--report", action="store_true", help="only print")
    add_settings(parser, "vary", "set")
    arguments = parser.parse_args()
    base = load_config(arguments.config)
    rows = []
    for name in arguments.tables:
        runs = list(named_runs(name, base, arguments.vary, arguments.set))
        if not arguments.report:
            run_grid(((run, config) for _, run, config in runs), arguments.out / name)
        rows += [{"table": name, **row} for row in table(runs, arguments.out / name)]
    if arguments.csv:
        write_rows(arguments.csv, rows)
    for line in (rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)):
        print(f"| {' | '.join(map(str, line))} |")


def named_runs(
    name: str, base: ConfigDict, vary: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterable[tuple[str, str, ConfigDict]]:
    """Yield row, name and config of each run of a table; --set and --vary win over the table's."""
    common, rows = TABLES[name]
    for row, changes in rows.items():
        config = with_changes(base, {**common, **changes})
        config = with_changes(config, {**paired(config, settings), **phases(name, row, config)})
        label = row.replace(" ", "_")
        for run, each in grid(config, vary, settings):
            yield row, f"{label}-{run}", each


def paired(config: ConfigDict, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return how many images are paired, of a semi-paired table that does not say."""
    if config.mismatch.protocol != SEMI_PAIRED or config.mismatch.paired_images:
        return {}
    if "mismatch.paired_images" in settings:
        return {}
    images = config.data.scenes_train if config.data.name == "scenes" else config.data.train_images
    if not images:
        raise ConfigError("expected --set mismatch.paired_images=N, the images that stay paired")
    return {"mismatch.paired_images": int(PAIRED_SHARE * images)}


def phases(name: str, row: str, config: ConfigDict) -> dict[str, int]:
    """Return the lengths of the phases where rows differ in them: the two triplet losses."""
    if name != "rcsl3":
        return {}
    total = config.train.warmup_epochs + config.train.epochs
    warmup = total if row == "TRL-S" else 0  # all negatives in the warm-up, the hardest after it
    return {"train.warmup_epochs": warmup, "train.epochs": total - warmup}


def table(runs: Iterable[tuple[str, str, ConfigDict]], out: Path) -> list[dict[str, str]]:
    """Return the rows of the table: mean and deviation over seeds of the test recalls.

    Raises:
      ConfigError: no run has finished, or those of a row differ in more than the seed.
    """
    groups: dict[str, list] = {}
    for row, name, config in runs:
        if (out / name / "results.json").exists():
            groups.setdefault(row, []).append((config, read_run(out / name).test))
    if not groups:
        raise ConfigError(f"{out}: no run has finished")
    rows = []
    for row, members in groups.items():
        if not differ_only_in_seed([config for config, _ in members]):
            raise ConfigError(f"{out}: the runs of {row} differ in more than the seed")
        cells = {"row": row, "seeds": str(len(members))}
        for name in RECALLS:
            values = [test[name] for _, test in members]
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            cells[name] = f"{np.mean(values):.1f}{spread}"
        rows.append(cells)
    return rows


if __name__ == "__main__":
    start(main)
