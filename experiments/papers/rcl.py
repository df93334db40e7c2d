"""RCL's losses and ablations by mismatch rate: the six of RCL Tab. 6, the five of Tab. 7.

python -m experiments.papers.rcl --out=runs/rcl
python -m experiments.papers.rcl --out=runs/rcl --vary mismatch.rate=0.6 --vary seed=0,1,2
python -m experiments.papers.rcl --out=runs/rcl --report
python -m experiments.papers.rcl --out=runs/quick --quick

Trains on `scenes`, or on the data and head of --config. All losses train for the same number of
epochs at a constant learning rate. The grid stops and continues like `experiments.papers.sweep` and
ends with a table of the test rSum by loss and mismatch rate, averaged over the finished seeds.
--report trains nothing and prints the table of the finished runs.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.papers.runs import differ_only_in_seed
from experiments.papers.sweep import (
    add_settings,
    grid,
    load_config,
    run_grid,
    run_name,
    start,
    with_changes,
)
from l2rm_jax.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "configs" / "scenes.py"
RATES = [0.2, 0.4, 0.6, 0.8]
QUICK_RATES = [0.2, 0.6]

# Config fields by the paper's name of the loss. A star: one negative. CCL of Tab. 7 is log.
LOSSES = {
    "mae*": {"method": "rcl", "rcl.loss": "mae", "rcl.negatives": 1},
    **{name: {"method": "rcl", "rcl.loss": name} for name in ("mae", "exp", "log", "gce", "tan")},
    "TR": {"method": "triplet"},
    "TR-HN": {"method": "triplet"},
    "NL": {"method": "rcl", "rcl.loss": "log", "rcl.negatives": 1},
    "CL": {"method": "infonce"},
}
TABLES = {
    "Tab. 6": ("mae*", "mae", "exp", "log", "gce", "tan"),
    "Tab. 7": ("TR", "TR-HN", "NL", "CL", "log"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", default=f"{CONFIG}:long", help="FILE.py or FILE.py:VARIANT")
    parser.add_argument("--out", required=True, type=Path, help="directory of the runs")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see that all work")
    parser.add_argument("--report", action="store_true", help="only print")
    add_settings(parser, "vary", "set")
    arguments = parser.parse_args()
    config = load_config(f"{CONFIG}:quick" if arguments.quick else arguments.config)
    vary = {"mismatch.rate": QUICK_RATES if arguments.quick else RATES, **arguments.vary}
    runs = list(named_runs(config, vary, arguments.set))
    if not arguments.report:
        run_grid(((name, config) for _, name, config in runs), arguments.out)
    print(report(runs, arguments.out))


def named_runs(
    base: ConfigDict, vary: Mapping[str, Sequence], settings: Mapping[str, Any]
) -> Iterable[tuple[str, str, ConfigDict]]:
    """Yield loss, name and config of each run; the losses change fastest."""
    grids = []
    for loss, changes in LOSSES.items():
        config = with_changes(base, {**settings, **changes})
        runs = grid(config, vary, phases(loss, config))
        file = loss.replace("*", "1")
        grids.append([(loss, f"{file}-{run_name(run, vary)}", run) for _, run in runs])
    for runs_of_all_losses in zip(*grids, strict=True):
        yield from runs_of_all_losses


def phases(loss: str, config: ConfigDict) -> dict[str, int]:
    """Return the fields that make all epochs of the config one phase.

    The method `triplet` uses all negatives in the warm-up, which is TR, and the hardest negatives
    after it, which is TR-HN.
    """
    total = config.train.warmup_epochs + config.train.epochs
    warmup = total if loss == "TR" else 0
    return {
        "train.warmup_epochs": warmup,
        "train.epochs": total - warmup,
        "optim.decay_epochs": total,
    }


def report(runs: Iterable[tuple[str, str, ConfigDict]], out: Path) -> str:
    """Return the table of the test rSum of the finished runs, by loss and rate.

    Raises:
      ConfigError: the finished runs of a cell differ in more than the seed.
    """
    rsums, configs = defaultdict(list), defaultdict(list)
    rates = set()
    for loss, name, config in runs:
        rates.add(config.mismatch.rate)
        if (results := out / name / "results.json").exists():
            rsums[loss, config.mismatch.rate].append(json.loads(results.read_text())["rsum"])
            configs[loss, config.mismatch.rate].append(config)
    for (loss, rate), group in configs.items():
        if not differ_only_in_seed(group):
            raise ConfigError(
                f"{out}: the runs of {loss} at rate {rate:g} differ in more than the seed"
            )
    columns = sorted(rates)
    lines = [f"{'test rSum at rate':<20}" + "".join(f"{rate:>8g}" for rate in columns)]
    for table, losses in TABLES.items():
        lines += ["", f"RCL {table}"]
        for loss in losses:
            cells = (rsums[loss, rate] for rate in columns)
            shown = (f"{np.mean(cell):8.1f}" if cell else f"{'-':>8}" for cell in cells)
            name = "log (CCL)" if loss == "log" and table == "Tab. 7" else loss
            lines.append(f"{name:<20}{''.join(shown)}")
    return "\n".join(lines)


if __name__ == "__main__":
    start(main)
