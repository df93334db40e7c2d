"""Time and memory of an audit, by the number of pairs; vectors are made up and lie on disk.

python -m experiments.bench.audit --pairs=100000 --csv=FILE
python -m experiments.bench.audit --pairs=100000,1000000 --dimensions=512 --csv=FILE
python -m experiments.bench.audit --pairs=100000 --executor=local,ray --workers=2

Each size is audited in a process of its own. A fifth of the pairs is mismatched. The row has the
seconds of the audit and of writing its files, the processor time of both, a hash of all that was
found, and the peak memory of the process, without the pages of files that it maps. Ray's workers
are not counted. --csv writes the rows.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.bench.measure import peak_anonymous_kib
from experiments.script import new_parser, values_of, write_rows
from l2rm_jax.audit import audit_pairs
from l2rm_jax.jobs import Place
from l2rm_jax.judging import JUDGEMENT_FILE

SHARED = 64  # directions that an image and its caption share
RATE = 0.2
SIDES = "images", "captions"
_BLOCK = 65536


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--pairs", type=values_of(int), default=[100_000], help="numbers of pairs")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--executor", type=values_of(str), default=["local"], help="local, ray")
    parser.add_argument("--workers", type=int, default=0, help="of Ray; 0: one for each core")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        [executor] = flags.executor
        workers = flags.workers if executor == "ray" else 0
        print(json.dumps(measure(flags.measure, Place(executor, workers=workers))))
        return
    rows: list[dict[str, float]] = []
    for pairs in flags.pairs:
        with tempfile.TemporaryDirectory() as directory:
            write_vectors(Path(directory), pairs, flags.dimensions)
            for executor in flags.executor:
                given = f"--executor={executor}", f"--workers={flags.workers}"
                rows.append(_measured_alone(directory, *given))
                print(rows[-1], flush=True)
        if flags.csv:
            write_rows(flags.csv, rows)


def _measured_alone(directory: str, *flags: str) -> dict[str, float]:
    """Measure in a process of its own, and its memory with it."""
    command = [sys.executable, "-m", "experiments.bench.audit", f"--measure={directory}", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = peak_anonymous_kib(process)
    printed, _ = process.communicate()
    if process.returncode:
        sys.exit("the audit failed")
    return json.loads(printed.splitlines()[-1]) | {"own_memory_gb": round(peak * 1024 / 1e9, 2)}


def measure(directory: Path, place: Place) -> dict[str, float | str]:
    """Audit the pairs of a directory, one caption an image, and write the findings."""
    images, captions = (np.load(directory / f"{name}.npy", mmap_mode="r") for name in SIDES)
    pairs, dimensions = images.shape
    stored = np.arange(pairs)
    moved = np.random.default_rng(1).permutation(pairs)[: int(RATE * pairs)]
    stored[moved] = np.roll(moved, 1)
    begin = time.perf_counter()
    with place.open() as executor:
        audit = audit_pairs(images, captions, stored, executor=executor)
    judged = time.perf_counter()
    out = audit.write(directory / place.executor)
    written, cpu = time.perf_counter(), time.process_time()
    return {
        "executor": place.executor,
        "pairs": pairs,
        "dimensions": dimensions,
        "rate": round(audit.rate.estimate, 4),
        "seconds": round(judged - begin, 1),
        "seconds_to_write": round(written - judged, 1),
        "cpu_seconds": round(cpu, 1),
        "judgement": hashlib.blake2b(
            (out / JUDGEMENT_FILE).read_bytes(), digest_size=8
        ).hexdigest(),
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
