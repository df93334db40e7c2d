"""Memory of training against the size of the feature file: `python -m experiments.machines.memory`.

Trains a small model for a few steps, first on a small and then on a huge feature file, each in a
process of its own, and prints the peak memory of each process. Anonymous memory (RssAnon) is what
the program holds. Pages of the mapped file (RssFile) are the system's cache, which it frees when
memory is needed. The huge file is sparse: it takes no room on the disk and reads as zeros.
Linux only; takes some minutes.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.bench.measure import memory_kib
from experiments.script import new_parser

ROW = (64, 32768)  # regions x features of an image: large, so that few images make a huge file
ROW_BYTES = 4 * ROW[0] * ROW[1]  # 8 MiB
SETTINGS = (
    *("data.name=sparse", "train.batch_size=4", "evaluation.batch_size=4", "train.log_steps=1"),
    *("model.head=saf", "model.embed_dim=16", "model.word_dim=8", "model.sim_dim=8"),
    *("method=triplet", "mismatch.rate=0", "data.min_count=1"),
)


def main() -> None:
    parser = new_parser(__doc__)
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    parser.add_argument("--small", type=float, default=1.0, help="GB of the small file")
    parser.add_argument(
        "--large", type=float, default=10 * ram, help="GB of the large file (10 x the RAM)"
    )
    parser.add_argument("--steps", type=int, default=20, help="training steps on each")
    parser.add_argument("--dir", help="directory for the temporary files (default: the system's)")
    arguments = parser.parse_args()
    peaks = []
    print("features GB   images   steps   peak anonymous MiB   peak file pages MiB")
    for gigabytes in (arguments.small, arguments.large):
        images = uneven(max(64, int(gigabytes * 1e9 / ROW_BYTES)))
        with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
            write_data(Path(directory), images)
            peak = train(Path(directory), arguments.steps)
        peaks.append(peak["RssAnon"])
        size = images * ROW_BYTES / 1e9
        print(
            f"{size:11.4g}{images:9d}{arguments.steps:8d}"
            f"{peak['RssAnon'] / 1024:21.0f}{peak['RssFile'] / 1024:22.0f}",
            flush=True,
        )
    print(f"anonymous memory, large to small: {peaks[1] / peaks[0]:.3f}")


def uneven(images: int) -> int:
    """Return `images`, plus one for a multiple of 5.

    All images are equal. With a multiple of 5, the reader would take five in a row for one image
    that is stored once for each of its captions, and read the file in another way.
    """
    return images + (images % 5 == 0)


def write_data(directory: Path, images: int) -> None:
    """Write a data set with one caption per image and a sparse feature file."""
    for split, count in (("train", images), ("dev", 8), ("test", 8)):
        with (directory / f"{split}_ims.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, *ROW)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + count * ROW_BYTES)
        lines = [f"{k}\ta picture of thing {k % 50} and {k % 7}\n" for k in range(count)]
        (directory / f"{split}_caps.tsv").write_text("".join(lines))


def train(directory: Path, steps: int) -> dict[str, int]:
    """Train for some steps and return the peaks of RssAnon and RssFile in KiB."""
    fields = [f"--config.{setting}" for setting in (*SETTINGS, f"data.path={directory}")]
    command = [sys.executable, "-m", "l2rm_jax.main", *fields]
    log, peaks = directory / "run" / "metrics.jsonl", {"RssAnon": 0, "RssFile": 0}
    output = (directory / "output").open("w+")
    process = subprocess.Popen(
        [*command, f"--workdir={directory / 'run'}"], stdout=output, stderr=subprocess.STDOUT
    )
    try:
        while not log.exists() or log.read_text().count("\n") < steps:
            if process.poll() is not None:
                output.seek(0)
                sys.exit(f"the run ended too early:\n{output.read()}")
            for name in peaks:
                peaks[name] = max(peaks[name], memory_kib(process.pid, name))
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait()
        output.close()
    return peaks


if __name__ == "__main__":
    main()
