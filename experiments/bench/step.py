"""Time of one training step: python -m experiments.bench.step --head=sgr --batch=32 --embed_dim=256

By default times a whole step of L2RM after the warm-up: the update of the learned cost, the forward
and backward passes of matched and mismatched pairs, transport, Adam, and the transfer of the batch
to the devices. `matrix_gflops` is the number of operations of all matrix products, recomputed ones
included, divided by the time of the step (see `experiments.machines.work`). `--trace=DIR` writes a
profile of the timed steps for TensorBoard or Perfetto.
"""

import argparse
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from experiments.bench.measure import (
    VOCABULARY,
    measure,
    pairs,
    parser,
    peak_memory,
    report,
    spread,
)
from experiments.machines.work import bench_operations, step_batches, step_config
from experiments.papers.sweep import start
from l2rm_jax.data.batches import Batch
from l2rm_jax.devices.parallel import AXIS, Replicas, matmul_precision
from l2rm_jax.devices.programs import Program
from l2rm_jax.methods import METHODS, make_method
from l2rm_jax.methods.base import TrainState, skip_non_finite
from l2rm_jax.methods.pair_values import initial_state
from l2rm_jax.models import make_model


def flags(description: str | None = __doc__) -> argparse.ArgumentParser:
    """Return a parser with the flags of a benchmark that trains."""
    flags = parser(description)
    flags.add_argument("--method", default="l2rm", choices=METHODS)
    flags.add_argument("--batch", type=int, default=128, help="pairs of a stream on all devices")
    flags.add_argument("--chunk", type=int, help="captions scored at once (default: the config's)")
    return flags


def main() -> None:
    known = flags()
    known.add_argument("--trace", help="write a profile to this directory")
    sizes = known.parse_args()
    with matmul_precision(sizes.precision):
        seconds = step_seconds(sizes)
    median = float(np.median(seconds))
    results = {"step_s": spread(seconds), "pairs_per_s": sizes.batch / median}
    results["matrix_gflops"] = bench_operations(sizes) / median / 1e9
    report({**results, **peak_memory()}, sizes)


class Prepared(NamedTuple):
    """The training step on all devices, not compiled yet, and its inputs."""

    step: Program
    state: TrainState
    batches: dict[str, Batch | tuple[Batch, ...]]
    replicas: Replicas

    def shards(self, batches: Mapping | None = None) -> dict[str, Batch | tuple[Batch, ...]]:
        """Return `batches`, by default its own, split over the devices."""
        batches = self.batches if batches is None else batches
        return {name: self.replicas.shard(batch) for name, batch in batches.items()}


def prepare(sizes: argparse.Namespace, streams: Mapping[str, int] | None = None) -> Prepared:
    """Return the training step, not compiled, with random pairs of each stream.

    Args:
      sizes: the flags of the benchmark.
      streams: how many batches the step takes of each stream; None for a step after the warm-up.
    """
    config, replicas = step_config(sizes), Replicas()
    replicas.check_batch(sizes.batch)
    method = make_method(make_model(config, VOCABULARY, AXIS), config)
    batches = random_batches(sizes, streams or method.streams)
    sample = pairs(np.random.default_rng(0), sizes.batch, sizes)
    state = replicas.replicate(initial_state(method, jax.random.key(0), sample, sizes.batch))
    return Prepared(
        replicas.map(skip_non_finite(method.step), donate=True), state, batches, replicas
    )


def step_seconds(sizes: argparse.Namespace) -> list[float]:
    """Return the seconds of each timed step."""
    step = make_step(sizes)
    trace = jax.profiler.trace(sizes.trace) if sizes.trace else contextlib.nullcontext()
    step()  # compile outside the profile
    with trace:
        return measure(step, sizes.repeats)


def make_step(sizes: argparse.Namespace) -> Callable[[], dict]:
    """Return a function that trains one step further at each call and returns its metrics."""
    prepared = prepare(sizes)
    state = prepared.state

    def step() -> dict:
        nonlocal state
        state, metrics = prepared.step(state, prepared.shards())
        return metrics

    return step


def random_batches(
    sizes: argparse.Namespace, streams: Mapping[str, int]
) -> dict[str, Batch | tuple[Batch, ...]]:
    """Return random batches, the same at each call and in any process."""
    rng = np.random.default_rng(0)
    return step_batches(streams, lambda: pairs(rng, sizes.batch, sizes))


if __name__ == "__main__":
    start(main)
