"""Flickr8k with few known pairs: RCSL beside the triplet loss on the known pairs only.

python -m experiments.papers.semi_paired --path=DIR --out=runs/semi_paired
python -m experiments.papers.semi_paired --path=DIR --out=runs/semi_paired --vary seed=0,1,2
python -m experiments.papers.semi_paired --out=runs/semi_paired --report

500 or 2000 of the 6000 training images keep their captions (RCSL Tab. 1 and 2, reduced to what a
CPU can train). Both methods use RCSL's embedding model and the same number of updates. The grid
stops and continues like `experiments.papers.sweep`. --report trains nothing and prints the table of
the finished runs.
"""

import argparse
import json
from pathlib import Path

from ml_collections import ConfigDict

from experiments.papers.flickr8k import CONFIG, shared_vocabulary
from experiments.papers.runs import RECALLS, epoch_records
from experiments.papers.sweep import (
    add_settings,
    grid,
    load_config,
    result_row,
    run_grid,
    start,
)
from l2rm_jax.errors import ConfigError
from l2rm_jax.settings import use_rcsl

PAIRED = (500, 2000)  # images
# Epochs of the warm-up and after it. An epoch of RCSL also covers the unpaired data.
EPOCHS = {("triplet", 500): (17, 46), ("triplet", 2000): (6, 14), "rcsl": (8, 3)}
COLUMNS = ("method", "head", "paired_images", "seed", *RECALLS, "best_epoch")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", type=Path, help="directory of the data")
    parser.add_argument("--out", required=True, type=Path, help="directory of the runs")
    parser.add_argument("--report", action="store_true", help="only print")
    add_settings(parser, "vary", "set")
    arguments = parser.parse_args()
    if not arguments.report:
        if arguments.path is None:
            raise ConfigError("--path: expected the directory of the data, or --report")
        config = base(arguments.path)
        vocabulary = shared_vocabulary(config, arguments.out, arguments.vary, arguments.set)
        config.data.vocabulary = str(vocabulary)
        runs = [
            run
            for paired in PAIRED
            for method in ("triplet", "rcsl")
            for run in grid(config, arguments.vary, {**settings(method, paired), **arguments.set})
        ]
        run_grid(runs, arguments.out)
    print(report(arguments.out))


def base(path: Path) -> ConfigDict:
    """Return the config of all runs, without the vocabulary."""
    config = load_config(str(CONFIG))
    config.data.path = str(path.absolute())
    config.data.train_images = 0
    use_rcsl(config, PAIRED[0])
    config.rcsl.learning_share = 0.2
    config.optim.decay_epochs = 100  # never reached: the learning rate is constant
    config.train.batch_size = 128
    return config


def settings(method: str, paired: int) -> dict[str, object]:
    """Return the config fields of one run that differ from `base`."""
    warmup, epochs = EPOCHS.get((method, paired)) or EPOCHS[method]
    return {
        "method": method,
        "mismatch.paired_images": paired,
        "train.warmup_epochs": warmup,
        "train.epochs": epochs,
    }


def report(out: Path) -> str:
    """Return a Markdown table of the finished runs: test recalls at the best validation epoch.

    Raises:
      ConfigError: no run has finished.
    """
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for file in sorted(out.glob("*/results.json")):
        result = json.loads(file.read_text())
        row = {**result["config"]["mismatch"], **result_row(result, epoch_records(file.parent))}
        cells = (row[name] for name in COLUMNS)
        shown = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells)
        lines.append(f"| {' | '.join(shown)} |")
    if len(lines) == 2:
        raise ConfigError(f"{out}: no run has finished")
    return "\n".join(lines)


if __name__ == "__main__":
    start(main)
