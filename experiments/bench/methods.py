"""Cost of a training step of each method relative to `triplet`, measured in turns.

python -m experiments.bench.methods --embed_dim=256 --sim_dim=64 --batch=32 --csv=step_costs.csv

A round takes one step of every method, with a batch of each of its streams: the step after the
warm-up that does the most. The table has the median over the rounds of the time in units of that of
`triplet` in the same round; the operations of all matrix products in the same unit (see
`experiments.machines.work`); and what the outline of the method lets expect. The time is that of
the processor, summed over threads, which processes beside this one change much less than the time
on the clock; on an accelerator it means nothing.
"""

import argparse
import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from experiments.bench.measure import VOCABULARY, parser, report
from experiments.bench.step import make_step
from experiments.machines.work import bench_operations, step_config
from experiments.papers.sweep import start
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.methods import make_method
from l2rm_jax.models import make_model

BASELINE = "triplet"
# Passes over the similarities of one batch in a step, by the outline in the file of the method: an
# update takes 3 (the backward pass counts twice), a batch that is only scored 1; twice as many for
# two networks. Encoders alone count nothing.
PASSES = {
    BASELINE: 3,
    "infonce": 3,
    "l2rm": 1 + 3 + 3,  # cost, matched, mismatched
    "decl": 3,
    "crcl": 3,
    "ncr": 2 * (1 + 3 + 2 + 3),  # matched with own labels, mismatched with labels of both networks
    "bicro": 2 * (1 + 3 + 3),
    "sps": 2 * (3 + 4 + 4),
    "cream": 2 * (4 + 4 + 5),
}


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--batch", type=int, default=32, help="pairs of a stream on all devices")
    flags.add_argument("--csv", type=Path, help="write the table to this file")
    flags.set_defaults(head="saf,sgr")
    sizes = flags.parse_args()
    columns = {}
    for head in sizes.head.split(","):
        each = {
            name: argparse.Namespace(**{**vars(sizes), "head": head, "method": name})
            for name in PASSES
        }
        with matmul_precision(sizes.precision):
            columns[f"{head} time"] = measure_in_turns(each, sizes.repeats)
        columns[f"{head} operations"] = {
            name: bench_operations(own) / bench_operations(each[BASELINE])
            for name, own in each.items()
        }
    rows = table(columns, {name: networks(own) for name, own in each.items()})
    times = {f"{name} {method}": x for name, each in columns.items() for method, x in each.items()}
    report(times, sizes)
    if sizes.csv:
        with sizes.csv.open("w", newline="") as file:
            csv.writer(file).writerows(rows)


def networks(sizes: argparse.Namespace) -> int:
    """Number of networks that the method of these flags trains."""
    config = step_config(sizes)
    return make_method(make_model(config, VOCABULARY), config).networks


def measure_in_turns(each: Mapping[str, argparse.Namespace], repeats: int) -> dict[str, float]:
    """Return the processor time of a step of each method, in units of that of `BASELINE`.

    Args:
      each: the flags of the benchmark by method.
      repeats: number of rounds, after one that compiles.
    """
    steps = {name: make_step(sizes) for name, sizes in each.items()}
    for take in steps.values():
        jax.block_until_ready(take())
    ratios = {name: [] for name in steps}
    for _ in range(repeats):
        seconds = {}
        for name, take in steps.items():
            began = time.process_time()
            jax.block_until_ready(take())
            seconds[name] = time.process_time() - began
        for name, own in seconds.items():
            ratios[name].append(own / seconds[BASELINE])
    return {name: float(np.median(values)) for name, values in ratios.items()}


def table(
    columns: Mapping[str, Mapping[str, float]], networks: Mapping[str, int]
) -> list[Sequence[str]]:
    """Return a row of names, and one for each method."""
    rows = [["method", "networks", "expected", *columns]]
    for name, passes in PASSES.items():
        expected = passes / PASSES[BASELINE]
        found = (f"{column[name]:.2f}" for column in columns.values())
        rows.append([name, str(networks[name]), f"{expected:.2f}", *found])
    return rows


if __name__ == "__main__":
    start(main)
