"""Memory and speed of the import: python -m experiments.bench.importing

Imports two arrays of random vectors in a process of its own and prints the peak of its anonymous
memory, which leaves out the pages of mapped files. Then it reads and groups a CSV of as many rows,
in turns with pandas reading it: one with the rows of an image together, and one with all rows in
random order. Features are not encoded: that is the encoder's time.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.bench.measure import report, spread
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.resolve import read_plan

_BLOCK = 1 << 14  # rows of an array that are written at once
CAPTIONS = 5  # of an image of the CSV


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    flags.add_argument("--rows", type=int, default=1_000_000)
    flags.add_argument("--dimensions", type=int, default=512)
    flags.add_argument("--repeats", type=int, default=3)
    flags.add_argument("--dir", help="directory for the files (default: the system's)")
    flags.add_argument("--json", help="file for the results")
    sizes = flags.parse_args()
    with tempfile.TemporaryDirectory(dir=sizes.dir) as directory:
        place = Path(directory)
        results = import_arrays(place, sizes.rows, sizes.dimensions)
        for name in ("table", "shuffled"):
            file = write_table(place / f"{name}.csv", sizes.rows, shuffle=name == "shuffled")
            results |= read_table(file, sizes.repeats)
    report(results, sizes)


def write_vectors(file: Path, rows: int, dimensions: int, seed: int) -> Path:
    """Write random vectors, float32, block by block."""
    rng = np.random.default_rng(seed)
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(rows, dimensions))
    for start in range(0, rows, _BLOCK):
        block = array[start : start + _BLOCK]
        block[:] = rng.standard_normal(block.shape, np.float32)
    array.flush()
    return file


def import_arrays(place: Path, rows: int, dimensions: int) -> dict[str, float]:
    """Import two arrays in a process of its own: its seconds, and its peak memory in MiB."""
    images = write_vectors(place / "images.npy", rows, dimensions, 0)
    captions = write_vectors(place / "captions.npy", rows, dimensions, 1)
    flags = [f"--image_vectors={images}", f"--caption_vectors={captions}", f"--out={place / 'out'}"]
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "l2rm_jax", "import", *flags])
    peak = peak_anonymous_kib(process)
    seconds = time.perf_counter() - begin
    if process.returncode:
        sys.exit("the import failed")
    shutil.rmtree(place / "out")
    for file in (images, captions):
        file.unlink()
    return {"arrays_s": seconds, "arrays_peak_anonymous_mib": peak / 1024}


def peak_anonymous_kib(process: subprocess.Popen) -> int:
    """Wait until a process ends; return the most anonymous memory that it had, in KiB."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_kib(process.pid))
        time.sleep(0.02)
    return peak


def anonymous_kib(process: int) -> int:
    """Anonymous memory of a process in KiB; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def write_table(file: Path, rows: int, *, shuffle: bool = False) -> Path:
    """Write a CSV of five captions an image, which follow each other unless they are shuffled."""
    rng = np.random.default_rng(2)
    images = np.arange(rows) // CAPTIONS
    if shuffle:
        np.random.default_rng(3).shuffle(images)
    text = "a man woman dog child red blue old small runs sits jumps on in grass water"
    words = text.split()
    with file.open("w") as target:
        target.write("filepath,title\n")
        for start in range(0, rows, _BLOCK):
            drawn = rng.integers(0, len(words), (min(_BLOCK, rows - start), 9))
            target.writelines(
                f"images/{images[start + at]:09}.jpg,{' '.join(words[n] for n in line)} .\n"
                for at, line in enumerate(drawn)
            )
    return file


def read_table(file: Path, repeats: int) -> dict[str, object]:
    """Read and group a table, in turns with pandas reading it; the seconds of both, by its name."""
    import datasets  # noqa: F401 - loaded before anything is timed
    import pandas

    vectors = write_vectors(file.with_name("images.npy"), _count_images(file), 2, 0)
    ours, theirs = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        pandas.read_csv(file)
        theirs.append(time.perf_counter() - begin)
        work = file.with_name("work")
        request = Request(file.with_name("out"), str(file), image_vectors=str(vectors))
        begin = time.perf_counter()
        read_plan(request, work, Rejected(work, 1.0))
        ours.append(time.perf_counter() - begin)
        shutil.rmtree(work, ignore_errors=True)
    ratio = float(np.median(ours) / np.median(theirs))
    name = file.stem
    return {
        f"{name}_s": spread(ours),
        f"{name}_pandas_s": spread(theirs),
        f"{name}_to_pandas": ratio,
    }


def _count_images(file: Path) -> int:
    with file.open() as lines:
        return -(-(sum(1 for _ in lines) - 1) // CAPTIONS)


if __name__ == "__main__":
    main()
