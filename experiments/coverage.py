"""How often the interval of the rate holds the truth, on pairs of a Gaussian space plus noise.

python -m experiments.coverage --csv=coverage.csv

Sets differ in size, in the number of shared directions, in noise and in the share of mismatched
pairs; one caption an image. Each is judged by linear models. --csv keeps the sets that it has, so
the command goes on where it stopped, and the last line says how many intervals hold the truth.
"""

import argparse
from pathlib import Path

import numpy as np

from experiments.audit import read_rows
from experiments.csv_rows import write_rows
from l2rm_jax.judging import Pairs, judge_pairs

SETS = 60
PAIRS = 1000, 3000, 10_000, 30_000
SHARED = 8, 24, 48
NOISE = 0.5, 1.0, 1.5, 2.0, 2.5
RATES = 0.0, 0.05, 0.1, 0.25, 0.4, 0.6
DIMENSIONS = 64, 48


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    flags = parser.parse_args()
    rows = read_rows(flags.csv)
    done = {row["set"] for row in rows}
    for number in range(flags.sets):
        if str(number) not in done:
            rows.append(measure(number))
            write_rows(flags.csv, rows)
            print(*rows[-1].values(), flush=True)
    told = [row for row in rows if str(row["told"]) == "True"]
    held = sum(str(row["held"]) == "True" for row in told)
    print(f"{len(told)} of {len(rows)} sets are told; {held} of these intervals hold the truth")


def measure(number: int) -> dict[str, object]:
    """Make one set and judge it; the number chooses its kind."""
    rng = np.random.default_rng(number)
    pairs, shared, noise, rate = (rng.choice(values) for values in (PAIRS, SHARED, NOISE, RATES))
    judged = judge_pairs(make_pairs(rng, pairs, shared, noise, rate))
    true, found = int(rate * pairs) / pairs, judged.rate
    return {
        "set": number,
        "pairs": pairs,
        "shared": shared,
        "noise": noise,
        "true": true,
        "rate": f"{found.estimate:.4f}",
        "rate_low": f"{found.low:.4f}",
        "rate_high": f"{found.high:.4f}",
        "auroc": f"{judged.auroc:.4f}",
        "told": not judged.cannot_tell,
        "held": bool(found.low <= true <= found.high),
    }


def make_pairs(
    rng: np.random.Generator, count: int, shared: int, noise: float, rate: float
) -> Pairs:
    """Vectors whose images and captions are maps of one Gaussian vector, each with its noise."""
    cause = rng.standard_normal((count, shared))
    sides = [
        cause @ rng.standard_normal((shared, size)) / np.sqrt(shared)
        + noise * rng.standard_normal((count, size))
        for size in DIMENSIONS
    ]
    stored = np.arange(count)
    moved = rng.permutation(count)[: int(rate * count)]
    stored[moved] = stored[np.roll(moved, 1)]
    images, captions = (side.astype(np.float32) for side in sides)
    return Pairs(images, captions, stored)


if __name__ == "__main__":
    main()
