"""Rate at which training pairs are read: python -m experiments.bench.input --images=2000

Writes a feature file of the given size (36 x 2048 float32 by default, 0.3 MB per image), maps it,
and reads the batches of an epoch as the training loop does: it gathers rows in shuffled order,
checks for finite values, and pads. A file that fits in memory is read from the system's cache;
`--dir` chooses the disk.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.bench.measure import data_parser, dataset, report, spread
from experiments.papers.sweep import start
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.streams import TrainStream


def main() -> None:
    flags = data_parser(__doc__)
    flags.add_argument("--batch", type=int, default=128)
    flags.add_argument("--images", type=int, default=2000)
    flags.add_argument("--steps", type=int, default=40, help="steps to read in each repeat")
    flags.add_argument("--dir", help="directory for the temporary file (default: the system's)")
    sizes = flags.parse_args()
    with tempfile.TemporaryDirectory(dir=sizes.dir) as directory:
        path = Path(directory) / "train_ims.npy"
        write_features(path, sizes)
        rng = np.random.default_rng(0)
        pairs = dataset(rng, RegionFeatures.read(path), 5 * sizes.images, sizes.words)
        rates = [read(pairs, sizes, epoch) for epoch in range(sizes.repeats + 1)][1:]
    report({"pairs_per_s": spread(rates)}, sizes)


def write_features(path: Path, sizes: argparse.Namespace) -> None:
    """Write a file of random features, image by image."""
    rng = np.random.default_rng(0)
    shape = (sizes.images, sizes.regions, sizes.features)
    stored = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    for row in stored:
        row[:] = rng.standard_normal(row.shape, np.float32)
    stored.flush()


def read(pairs, sizes: argparse.Namespace, epoch: int) -> float:
    """Read steps of two streams, as L2RM does, and return the pairs per second."""
    half = len(pairs) // 2
    streams = {"matched": np.arange(half), "mismatched": np.arange(half, len(pairs))}
    stream = TrainStream(pairs, streams, batch_size=sizes.batch, seed=0, epoch=epoch)
    batches = stream.iterate()
    steps = min(sizes.steps, len(stream))
    begin = time.perf_counter()
    for _ in range(steps):
        next(batches)
    return steps * sizes.batch * len(streams) / (time.perf_counter() - begin)


if __name__ == "__main__":
    start(main)
