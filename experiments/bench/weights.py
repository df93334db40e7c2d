"""Cost of weights per pair in a training step: python -m experiments.bench.weights --csv=FILE

Runs a step with `train.weight=score` and the same step without it in turns, in one process; every
other turn begins with the weighted step. The CPU seconds of the process are compared, as other
programs of the machine disturb them least. The ratio is the median over the turns.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from experiments.bench.step import flags, make_step, prepare
from experiments.script import processor, start, write_rows
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.methods.pair_weights import SCORE

METHODS = ("infonce", "triplet", "sigmoid")
# The error of a median of n values is about 0.93 of their interquartile range over sqrt(n).
ERROR_OF_MEDIAN = 0.93


def main() -> None:
    known = flags(__doc__)
    known.set_defaults(head="vse", embed_dim=128, features=256, repeats=200)
    known.add_argument("--csv", type=Path, required=True, help="file to write")
    sizes = known.parse_args()
    with matmul_precision(sizes.precision):
        rows = [row(sizes, method) for method in METHODS]
    write_rows(sizes.csv, rows)


def row(sizes: argparse.Namespace, method: str) -> dict[str, object]:
    """Measure one method, and print its row."""
    sizes.method = method
    seconds = in_turns(make_step(sizes), weighted_step(sizes), sizes.repeats)
    low, ratio, high = np.quantile(seconds[:, 1] / seconds[:, 0], (0.25, 0.5, 0.75))
    error = ERROR_OF_MEDIAN * (high - low) / np.sqrt(sizes.repeats)
    measured = {
        "machine": processor(),
        "head": sizes.head,
        "method": method,
        "batch": sizes.batch,
        "embed_dim": sizes.embed_dim,
        "turns": sizes.repeats,
        "CPU seconds without weights": f"{np.median(seconds[:, 0]):.3g}",
        "ratio with weights": f"{ratio:.3f}",
        "standard error": f"{error:.3f}",
    }
    print(*measured.values(), flush=True)
    return measured


def weighted_step(sizes: argparse.Namespace) -> Callable[[], dict]:
    """Return the step with random weights, as `make_step` does."""
    scores = np.random.default_rng(0).uniform(-0.2, 0.6, sizes.batch)
    return make_step(sizes, prepare(sizes, {"train.weight": "score"}, {SCORE: scores}))


def in_turns(plain: Callable[[], dict], weighted: Callable[[], dict], turns: int) -> np.ndarray:
    """CPU seconds of both functions, `[turns, 2]`, after a first call of each to compile it."""
    functions = plain, weighted
    jax.block_until_ready([function() for function in functions])
    seconds = np.empty((turns, 2))
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            begin = time.process_time()
            jax.block_until_ready(functions[which]())
            seconds[turn, which] = time.process_time() - begin
    return seconds


if __name__ == "__main__":
    start(main)
