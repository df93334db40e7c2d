"""Predict what it takes to judge more pairs than one machine holds, from what was measured on one.

python -m experiments.machines.judging --measured=audit_cost.csv --csv=audit_scale.csv

`experiments.bench.audit` measures two sizes of 512 dimensions. A straight line through them gives
processor time and memory at other sizes. Only the search for near duplicates grows faster: it
compares each image with about √pairs others. That extra time is its operations divided by --rate,
the speed of a float32 matrix product on one core, which this script measures. The first row is the
larger size as it was measured, the second the number of pairs that fit in memory.

    processor time = constant + slope * pairs + 4 * dimensions * pairs * (√pairs - √measured) / rate
"""

import argparse
import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.csv_rows import write_rows

SIZES = (12_000_000, 400_000_000, 5_000_000_000)  # as CC12M, LAION-400M, LAION-5B
DIMENSIONS, BYTES = 512, 2  # of a vector; of a number in float16
CORES = 512
MEMORY_GB = 128  # of the machine that joins the parts
_PRODUCT = 2048


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--measured", required=True, type=Path, help="of experiments.bench.audit")
    parser.add_argument("--rate", type=float, help="operations a second; measured if not given")
    parser.add_argument("--csv", type=Path)
    flags = parser.parse_args()
    with flags.measured.open(newline="") as file:
        measured = [row for row in csv.DictReader(file) if row["executor"] == "local"]
    rows = predictions(measured[0], measured[-1], flags.rate or product_rate())
    for row in rows:
        print(row)
    if flags.csv:
        write_rows(flags.csv, rows)


def predictions(
    small: Mapping[str, str], large: Mapping[str, str], rate: float
) -> list[dict[str, str]]:
    """Return rows for the larger size measured, what `MEMORY_GB` hold, and each of `SIZES`.

    Args:
      small: row of the smaller size measured.
      large: row of the larger one.
      rate: operations of a matrix product a second, of one core.
    """
    pairs, cpu_seconds, memory = (
        [float(row[name]) for row in (small, large)]
        for name in ("pairs", "cpu_seconds", "own_memory_gb")
    )
    most = _line(memory, pairs, MEMORY_GB)
    rows = []
    for count in map(int, (pairs[1], most, *SIZES)):
        more = max(np.sqrt(count) - np.sqrt(pairs[1]), 0)
        seconds = _line(pairs, cpu_seconds, count) + 4 * DIMENSIONS * count * more / rate
        rows.append(
            {
                "pairs": _digits(count),
                "core_hours": _digits(seconds / 3600),
                f"hours_on_{CORES}_cores": _digits(seconds / 3600 / CORES),
                "vectors_tb": _digits(2 * DIMENSIONS * BYTES * count / 1e12),
                "memory_gb": _digits(_line(pairs, memory, count)),
            }
        )
    return rows


def _line(at: Sequence[float], values: Sequence[float], where: int) -> float:
    """The value of the line through two points."""
    slope = (values[1] - values[0]) / (at[1] - at[0])
    return values[0] + slope * (where - at[0])


def _digits(value: float) -> str:
    """Two digits, without an exponent."""
    return f"{float(f'{value:.2g}'):,.10g}"


def product_rate() -> float:
    """Operations a second of a matrix product in float32, of one core: of all, divided."""
    matrix = jnp.ones((_PRODUCT, _PRODUCT), jnp.float32)
    product = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
    product(matrix).block_until_ready()
    begin = time.process_time()
    for _ in range(5):
        product(matrix).block_until_ready()
    return 5 * 2 * _PRODUCT**3 / (time.process_time() - begin)


if __name__ == "__main__":
    main()
