"""Time and memory of an audit, by the number of pairs; vectors are made up and lie on disk.

python -m experiments.bench.audit --pairs=100000 --csv=FILE
python -m experiments.bench.audit --pairs=100000,1000000 --dimensions=512 --csv=FILE

Each size is a process of its own. A fifth of the pairs is mismatched. The row has the seconds of
the audit and of writing its files, and the most memory of the process, with the files it maps.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from l2rm_jax.audit import audit_pairs

SHARED = 64  # directions that an image and its caption share
RATE = 0.2
_BLOCK = 65536


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", default="100000", help="numbers of pairs, between commas")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    sizes = [int(size) for size in flags.pairs.split(",")]
    if flags.one:
        print(json.dumps(measure(sizes[0], flags.dimensions)))
        return
    rows = []
    for size in sizes:
        command = [sys.executable, "-m", "experiments.bench.audit", "--one", f"--pairs={size}"]
        command.append(f"--dimensions={flags.dimensions}")
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1])
        if flags.csv:
            with flags.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)


def measure(pairs: int, dimensions: int) -> dict[str, float]:
    """Audit so many pairs, one caption an image, and write what is found."""
    with tempfile.TemporaryDirectory() as directory:
        images, captions = write_vectors(Path(directory), pairs, dimensions)
        stored = np.arange(pairs)
        moved = np.random.default_rng(1).permutation(pairs)[: int(RATE * pairs)]
        stored[moved] = np.roll(moved, 1)
        begin = time.perf_counter()
        audit = audit_pairs(images, captions, stored)
        judged = time.perf_counter()
        audit.write(Path(directory) / "audit")
        written = time.perf_counter()
    return {
        "pairs": pairs,
        "dimensions": dimensions,
        "rate": round(audit.rate.estimate, 4),
        "seconds": round(judged - begin, 1),
        "seconds_to_write": round(written - judged, 1),
        "memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def write_vectors(directory: Path, pairs: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Write vectors of images and captions, in float16, and open them memory-mapped."""
    rng = np.random.default_rng(0)
    maps = rng.standard_normal((2, SHARED, dimensions)).astype(np.float32)
    files = [directory / f"{name}.npy" for name in ("images", "captions")]
    shape = (pairs, dimensions)
    arrays = [np.lib.format.open_memmap(file, "w+", np.float16, shape) for file in files]
    for start in range(0, pairs, _BLOCK):
        shared = rng.standard_normal((min(_BLOCK, pairs - start), SHARED), np.float32)
        for array, matrix in zip(arrays, maps, strict=True):
            noise = rng.standard_normal((len(shared), dimensions), np.float32)
            array[start : start + len(shared)] = shared @ matrix + 4 * noise
    return tuple(np.load(file, mmap_mode="r") for file in files)


if __name__ == "__main__":
    main()
