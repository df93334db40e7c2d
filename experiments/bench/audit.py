"""Time and memory of an audit, by the number of pairs; vectors are made up and lie on disk.

python -m experiments.bench.audit --pairs=100000 --csv=FILE
python -m experiments.bench.audit --pairs=100000,1000000 --dimensions=512 --csv=FILE

Each size is audited in a process of its own. A fifth of the pairs is mismatched. The row has the
seconds of the audit and of writing its files, and the most memory of the process, without the pages
of files that it maps. --csv writes the rows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.bench.importing import peak_anonymous_kib
from experiments.csv_rows import write_rows
from l2rm_jax.audit import audit_pairs, inputs_of_arrays, write_audit

SHARED = 64  # directions that an image and its caption share
RATE = 0.2
SIDES = "images", "captions"
_BLOCK = 65536


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", default="100000", help="numbers of pairs, between commas")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        print(json.dumps(measure(flags.measure)))
        return
    rows: list[dict[str, float]] = []
    for pairs in map(int, flags.pairs.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            write_vectors(Path(directory), pairs, flags.dimensions)
            rows.append(_measured_alone(directory))
        print(rows[-1], flush=True)
        if flags.csv:
            write_rows(flags.csv, rows)


def _measured_alone(directory: str) -> dict[str, float]:
    """Measure in a process of its own, and its memory with it."""
    command = [sys.executable, "-m", "experiments.bench.audit", f"--measure={directory}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = peak_anonymous_kib(process)
    printed, _ = process.communicate()
    if process.returncode:
        sys.exit("the audit failed")
    return json.loads(printed.splitlines()[-1]) | {"own_memory_gb": round(peak * 1024 / 1e9, 2)}


def measure(directory: Path) -> dict[str, float]:
    """Audit the pairs of a directory, one caption an image, and write what is found."""
    images, captions = (np.load(directory / f"{name}.npy", mmap_mode="r") for name in SIDES)
    pairs, dimensions = images.shape
    stored = np.arange(pairs)
    moved = np.random.default_rng(1).permutation(pairs)[: int(RATE * pairs)]
    stored[moved] = np.roll(moved, 1)
    begin = time.perf_counter()
    audit = audit_pairs(images, captions, stored)
    judged = time.perf_counter()
    write_audit(audit, inputs_of_arrays(images, captions, stored), directory / "audit")
    written = time.perf_counter()
    return {
        "pairs": pairs,
        "dimensions": dimensions,
        "rate": round(audit.rate.estimate, 4),
        "seconds": round(judged - begin, 1),
        "seconds_to_write": round(written - judged, 1),
    }


def write_vectors(directory: Path, pairs: int, dimensions: int) -> None:
    """Write vectors of images and captions, in float16."""
    rng = np.random.default_rng(0)
    maps = rng.standard_normal((2, SHARED, dimensions)).astype(np.float32)
    files = [directory / f"{name}.npy" for name in SIDES]
    shape = (pairs, dimensions)
    arrays = [np.lib.format.open_memmap(file, "w+", np.float16, shape) for file in files]
    for start in range(0, pairs, _BLOCK):
        shared = rng.standard_normal((min(_BLOCK, pairs - start), SHARED), np.float32)
        for array, matrix in zip(arrays, maps, strict=True):
            noise = rng.standard_normal((len(shared), dimensions), np.float32)
            array[start : start + len(shared)] = shared @ matrix + 4 * noise


if __name__ == "__main__":
    main()
