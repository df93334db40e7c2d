"""Load of a device that trains from disk: python -m experiments.bench.epoch --images=29000

Writes a feature file of the given size (Flickr30K's 29,000 images of 36 x 2048 take 8.6 GB), then
trains on it as the training loop does, with five captions per image: features are gathered from the
mapped file in shuffled order while the device works. `busy` is the time that the same number of
steps takes on a batch in memory, divided by the time of the epoch. `--dir` chooses the disk;
`--steps` ends the epoch early.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from experiments.bench.measure import dataset, measure, report, spread, write_features
from experiments.bench.step import Prepared, flags, prepare
from experiments.script import start
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.parallel import matmul_precision

LOG_STEPS = 10  # the loop waits for the device after this many steps, to log


def main() -> None:
    known = flags(__doc__)
    known.add_argument("--images", type=int, default=2000)
    known.add_argument("--steps", type=int, help="steps of the epoch (default: all)")
    known.add_argument("--dir", help="directory for the temporary file (default: the system's)")
    sizes = known.parse_args()
    with tempfile.TemporaryDirectory(dir=sizes.dir) as directory, matmul_precision(sizes.precision):
        path = Path(directory) / "train_ims.npy"
        write_features(path, sizes.images, sizes.regions, sizes.features)
        rng = np.random.default_rng(0)
        pairs = dataset(rng, RegionFeatures.read(path), 5 * sizes.images, sizes.words)
        prepared = prepare(sizes)
        parts = prepared.batches
        split = np.array_split(np.arange(len(pairs)), len(parts))
        split = {name: rows(parts[name], index) for name, index in zip(parts, split, strict=True)}
        stream = TrainStream(pairs, split, batch_size=sizes.batch, seed=0, epoch=0)
        alone, seconds, steps = run(prepared, stream, sizes)
    busy = steps * float(np.median(alone)) / seconds
    rate = steps * sizes.batch * len(parts) / seconds
    report({"step_s": spread(alone), "epoch_s": seconds, "pairs_per_s": rate, "busy": busy}, sizes)


def rows(batch: Batch | tuple[Batch, ...], index: np.ndarray) -> np.ndarray:
    """Return the rows that `TrainStream` takes for these pairs.

    If a step takes several batches of the stream, each pair is repeated as one (image, caption)
    couple per batch, `[pairs, batches, 2]`.
    """
    if isinstance(batch, Batch):
        return index
    return np.broadcast_to(index[:, None, None], (len(index), len(batch), 2))


def run(
    prepared: Prepared, stream: TrainStream, sizes: argparse.Namespace
) -> tuple[list[float], float, int]:
    """Return the seconds of each step on a batch in memory, the seconds of the epoch, its steps."""
    state = prepared.state

    def step(shards):
        nonlocal state
        state, metrics = prepared.step(state, shards)
        return metrics

    first = next(iter(stream.iterate()))
    alone = measure(lambda: step(prepared.shards(first)), sizes.repeats)
    begin, steps = time.perf_counter(), 0  # before anything is prefetched
    for steps, batch in enumerate(itertools.islice(stream.iterate(), sizes.steps), 1):
        metrics = step(prepared.shards(batch))
        if steps % LOG_STEPS == 0:
            jax.block_until_ready(metrics)
    jax.block_until_ready(state)
    return alone, time.perf_counter() - begin, steps


if __name__ == "__main__":
    start(main)
