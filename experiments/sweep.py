"""Train a grid of methods, heads, mismatch rates and seeds on one data set; a CSV row per run.

python -m experiments.sweep --config=configs/scenes.py --out=runs/scenes \
    --methods=l2rm,triplet --rates=0,0.6
python -m experiments.sweep --config=configs/flickr8k.py --out=runs/flickr8k \
    --set data.path=DIR --methods=l2rm --rates=0.4 --seeds=0,1,2

Every run has its own directory under --out. A sweep that was stopped continues: finished runs are
left alone, the one that was interrupted goes on from its last checkpoint. `results.csv` has a row
for every finished run under --out.
"""

import argparse
import ast
import csv
import itertools
import json
import runpy
from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.checkpoint import check_config
from l2rm_jax.train import train

COLUMNS = (
    "data", "method", "head", "protocol", "rate_asked", "true_rate", "kept_share", "seed",
    "evaluation", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum",
    "best_validation_rsum", "split_accuracy", "split_precision", "split_auroc", "seconds",
    "device", "jax",
)  # fmt: skip


def main() -> None:
    arguments = parse()
    out = Path(arguments.out)
    grid = itertools.product(
        arguments.methods, arguments.heads, map(float, arguments.rates), map(int, arguments.seeds)
    )
    for method, head, rate, seed in grid:
        config = runpy.run_path(arguments.config)["get_config"]()
        config.method, config.mismatch.rate, config.seed = method, rate, seed
        config.mismatch.seed = seed
        if head:
            config.model.head = head
        for setting in arguments.set:
            override(config, setting)
        names = (method, config.model.head, f"{config.mismatch.protocol}{rate:g}", f"seed{seed}")
        workdir = out / "-".join(names)
        check_config(workdir, config.to_dict())
        if not (workdir / "results.json").exists():
            train(config, workdir)
        finished = sorted(path.parent for path in out.glob("*/results.json"))
        write([row_of(path) for path in finished], out / "results.csv")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file of configs/")
    parser.add_argument("--out", required=True, help="directory of the sweep")
    for name, default in [("methods", "l2rm"), ("heads", ""), ("rates", "0.4"), ("seeds", "0")]:
        parser.add_argument(
            f"--{name}", default=[default], type=lambda text: text.split(","), help="a,b,..."
        )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def override(config: ConfigDict, setting: str) -> None:
    """`train.epochs=3`; text needs no quotes."""
    key, _, text = setting.partition("=")
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
    config.update_from_flattened_dict({key: value})  # locked: a misspelt key is an error


def row_of(workdir: Path) -> dict:
    """The row of a finished run."""
    found = json.loads((workdir / "results.json").read_text())
    last = epochs(workdir)[-1]
    evaluation, recalls = next(iter(found["test"].items()))
    known = {**found["versions"], **last, **recalls, **found, "evaluation": evaluation}
    return {name: known.get(name, "") for name in COLUMNS}


def epochs(workdir: Path) -> list[dict]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "epoch"]


def write(rows: list[dict], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
