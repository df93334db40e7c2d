"""Time of one training step: python -m experiments.bench.step --head=sgr --batch=32 --embed_dim=256

By default times a whole step of L2RM after the warm-up: the update of the learned cost, the forward
and backward passes of matched and mismatched pairs, transport, Adam, and the transfer of the batch
to the devices. `matrix_gflops` is the number of operations of all matrix products, recomputed ones
included, divided by the time of the step. `--trace=DIR` writes a profile of the timed steps for
TensorBoard or Perfetto.
"""

import argparse
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.bench.measure import (
    VOCABULARY,
    config_of,
    measure,
    pairs,
    parser,
    peak_memory,
    report,
    spread,
)
from experiments.script import start
from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.operations import operations_of
from l2rm_jax.devices.parallel import AXIS, Replicas, matmul_precision
from l2rm_jax.devices.programs import Program
from l2rm_jax.methods import METHODS, make_method
from l2rm_jax.methods.base import Method, TrainState, skip_non_finite
from l2rm_jax.methods.pair_values import initial_state, replace_pair_values
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
    trace = jax.profiler.trace(sizes.trace) if sizes.trace else contextlib.nullcontext()
    with matmul_precision(sizes.precision):
        step = make_step(sizes)
        step()  # compile outside the profile
        with trace:
            seconds = measure(step, sizes.repeats)
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


def prepare(
    sizes: argparse.Namespace,
    changes: Mapping[str, Any] = MappingProxyType({}),
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Prepared:
    """Return the training step after the warm-up, not compiled, with random pairs.

    Args:
      sizes: the flags of the benchmark.
      changes: further fields of the config, by their dotted names.
      values: numbers of each pair, `[batch]`, for the method's `pair_values`.
    """
    config, replicas = step_config(sizes), Replicas()
    config.update_from_flattened_dict(changes)
    replicas.check_batch(sizes.batch)
    method = make_method(make_model(config, VOCABULARY, AXIS), config)
    batches = random_batches(sizes, method.streams)
    sample = pairs(np.random.default_rng(0), sizes.batch, sizes)
    state = initial_state(method, jax.random.key(0), sample, sizes.batch)
    state = replicas.replicate(replace_pair_values(state, values) if values else state)
    return Prepared(
        replicas.map(skip_non_finite(method.step), donate=True), state, batches, replicas
    )


def make_step(sizes: argparse.Namespace, prepared: Prepared | None = None) -> Callable[[], dict]:
    """Return a function that trains one step further at each call and returns its metrics."""
    prepared = prepared or prepare(sizes)
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


def step_batches(
    streams: Mapping[str, int], make: Callable[[], Batch]
) -> dict[str, Batch | tuple[Batch, ...]]:
    """Return the batches of a step by stream: one batch, or a tuple of several.

    Args:
      streams: `Method.streams`, how many batches a step takes of each stream.
      make: makes a batch.
    """
    return {
        name: make() if count == 1 else tuple(make() for _ in range(count))
        for name, count in streams.items()
    }


def step_config(sizes: argparse.Namespace) -> ConfigDict:
    """Return the config of a benchmark that trains, without a warm-up."""
    config = config_of(sizes)
    config.method, config.train.warmup_epochs = sizes.method, 0
    if sizes.method == "rcsl":
        config.mismatch.protocol = SEMI_PAIRED
    return config


def bench_operations(sizes: argparse.Namespace) -> float:
    """Return the operations of the matrix products of a benchmark's step on one device."""
    shapes = mean_words(sizes), sizes.regions, sizes.features
    method, state, batch = step_inputs(step_config(sizes), 1, *shapes)
    return operations_of(jax.make_jaxpr(method.step, axis_env=[(AXIS, 1)])(state, batch).jaxpr)


def mean_words(sizes: argparse.Namespace) -> int:
    """Return the mean number of words of a benchmark's captions."""
    return int(np.mean(sizes.words))


def step_inputs(
    config: ConfigDict, devices: int, words: int, regions: int, features: int
) -> tuple[Method, TrainState, dict]:
    """Return the method, and shapes of the state and the batches of its step on one device."""
    method = make_method(make_model(config, VOCABULARY, AXIS), config)
    own = config.train.batch_size // devices

    def array(*shape: int, kind: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((own, *shape), kind)

    index = array(kind="int32")
    pairs = Batch(array(regions, features), index, array(words, kind="int32"), index, index, index)
    size = config.train.batch_size  # the state of as few training pairs
    start = partial(initial_state, method, pairs=size)
    state = jax.eval_shape(start, jax.random.key(0), pairs)
    return method, state, step_batches(method.streams, lambda: pairs)


if __name__ == "__main__":
    start(main)
