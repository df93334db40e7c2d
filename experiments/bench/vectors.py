"""Time and memory of transport between vectors, without a matrix of costs.

python -m experiments.bench.vectors --csv=FILE

Images are random unit vectors and captions noisy copies of them. Each size runs in a process of its
own, whose memory is read while it works, as in `experiments.machines.memory`. A size of 20,000
takes some minutes. Linux only.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from experiments.csv_rows import write_rows

MASS, EPSILON, NOISE = 0.5, 0.05, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", default="5000,20000", help="vectors of each side")
    parser.add_argument("--dim", type=int, default=512, help="numbers of a vector")
    parser.add_argument("--csv", type=Path, help="also write the numbers to this file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(solve(arguments.one, arguments.dim)))
        return
    rows = []
    for size in map(int, arguments.sizes.split(",")):
        rows.append(measure(size, arguments.dim))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if arguments.csv:
        write_rows(arguments.csv, rows)


def measure(size: int, dim: int) -> dict:
    """Solve in a process of its own; return its results and its peak memory."""
    command = [sys.executable, "-m", "experiments.bench.vectors", f"--one={size}", f"--dim={dim}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                peak = max(peak, int(line.split()[1]))
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"the process for size {size} failed")
    return {**json.loads(process.stdout.read()), "peak_gib": round(peak / 2**20, 2)}


def solve(size: int, dim: int) -> dict:
    """Solve once, compilation included, and read the leading entries of each row."""
    import jax

    from l2rm_jax.ot import partial_sinkhorn_of

    rng = np.random.default_rng(0)
    images = rng.standard_normal((size, dim), np.float32)
    captions = images + NOISE * rng.standard_normal((size, dim), np.float32)
    images, captions = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images, captions))
    wall, cpu = time.perf_counter(), time.process_time()
    result = partial_sinkhorn_of(images, captions, MASS, epsilon=EPSILON)
    jax.block_until_ready(result.log_rows)
    solved = time.perf_counter() - wall, time.process_time() - cpu
    columns, _ = jax.block_until_ready(result.leading(5))
    return {
        "size": size,
        "numbers": dim,
        "seconds": round(solved[0], 1),
        "cpu_seconds": round(solved[1], 1),
        "cpu_seconds_leading": round(time.process_time() - cpu - solved[1], 1),
        "iterations": int(result.iterations),
        "error": float(f"{float(result.error):.1g}"),
        "partners_first": round(float((columns[:, 0] == np.arange(size)).mean()), 4),
    }


if __name__ == "__main__":
    main()
