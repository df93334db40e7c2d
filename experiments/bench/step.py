"""Time of one training step: python -m experiments.bench.step --head=sgr --batch=32 --embed_dim=256

By default a whole step of L2RM after the warm-up: update of the learned cost, matched and
mismatched pairs forward and backward, transport, Adam. Transfers of the batch are part of it.
`matrix_gflops` is the rate of the head's matrix products alone, what is computed again in the
backward pass not counted, as if the rest took no time. `--trace=DIR` keeps a profile of the timed
steps for TensorBoard or Perfetto.
"""

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
from experiments.sweep import start
from l2rm_jax.data.batches import Batch
from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.devices.parallel import AXIS, Replicas, matmul_precision
from l2rm_jax.devices.programs import Program
from l2rm_jax.methods import METHODS, make_method
from l2rm_jax.methods.base import TrainState, skip_non_finite
from l2rm_jax.models import make_model

MINING = "mining"  # the stream of RCSL


def flags(description: str | None = __doc__) -> argparse.ArgumentParser:
    """Those of a benchmark that trains."""
    flags = parser(description)
    flags.add_argument("--method", default="l2rm", choices=METHODS)
    flags.add_argument("--batch", type=int, default=128, help="pairs of a stream, all devices")
    flags.add_argument("--chunk", type=int, help="captions scored at once (the config's default)")
    return flags


def main() -> None:
    known = flags()
    known.add_argument("--trace", help="directory for a profile")
    sizes = known.parse_args()
    with matmul_precision(sizes.precision):
        seconds = step_seconds(sizes)
    median = float(np.median(seconds))
    results = {"step_s": spread(seconds), "pairs_per_s": sizes.batch / median}
    flops = product_flops(sizes)
    if flops is not None:
        results["matrix_gflops"] = flops / median / 1e9
    report({**results, **peak_memory()}, sizes)


class Prepared(NamedTuple):
    """The trainer's step on all devices, nothing compiled, and what it takes."""

    step: Program
    state: TrainState
    batches: dict[str, Batch | tuple[Batch, ...]]
    replicas: Replicas

    def shards(self, batches: Mapping | None = None) -> dict[str, Batch | tuple[Batch, ...]]:
        """`batches` on the devices; its own when None."""
        batches = self.batches if batches is None else batches
        return {name: self.replicas.shard(batch) for name, batch in batches.items()}


def step_config(sizes: argparse.Namespace) -> ConfigDict:
    """The config of a run whose steps all are of the kind after the warm-up."""
    config = config_of(sizes)
    config.method, config.train.warmup_epochs = sizes.method, 0
    if sizes.method == "rcsl":
        config.mismatch.protocol = SEMI_PAIRED
    return config


def prepare(sizes: argparse.Namespace, streams: Sequence[str]) -> Prepared:
    """The step after the warm-up epochs, on made-up pairs for each of these streams."""
    config, replicas = step_config(sizes), Replicas()
    replicas.check_batch(sizes.batch)
    method = make_method(make_model(config.model, VOCABULARY, AXIS), config)
    batches = made_up_batches(sizes, streams)
    sample = pairs(np.random.default_rng(0), sizes.batch, sizes)
    state = replicas.replicate(method.init(jax.random.key(0), sample))
    return Prepared(
        replicas.map(skip_non_finite(method.step), donate=True), state, batches, replicas
    )


def step_seconds(sizes: argparse.Namespace) -> list[float]:
    """Seconds of each timed step."""
    step = stepping(sizes)
    trace = jax.profiler.trace(sizes.trace) if sizes.trace else contextlib.nullcontext()
    step()  # compiled outside the profile
    with trace:
        return measure(step, sizes.repeats)


def stepping(sizes: argparse.Namespace) -> Callable[[], dict]:
    """What takes a step at each call, from where the one before has ended; returns its metrics."""
    prepared = prepare(sizes, streams(sizes.method))
    state = prepared.state

    def step() -> dict:
        nonlocal state
        state, metrics = prepared.step(state, prepared.shards())
        return metrics

    return step


def streams(method: str) -> tuple[str, ...]:
    """Those of a step after the warm-up."""
    own = {"l2rm": ("matched", "mismatched"), "rcsl": (MINING,), "rcsl_nc": (MINING,)}
    return own.get(method, ("pairs",))


def step_batches(
    streams: Sequence[str], make: Callable[[], Batch]
) -> dict[str, Batch | tuple[Batch, ...]]:
    """What a step takes; RCSL's mining takes two couples a row."""
    return {name: (make(), make()) if name == MINING else make() for name in streams}


def made_up_batches(
    sizes: argparse.Namespace, streams: Sequence[str]
) -> dict[str, Batch | tuple[Batch, ...]]:
    """The same at each call, in any process."""
    rng = np.random.default_rng(0)
    return step_batches(streams, lambda: pairs(rng, sizes.batch, sizes))


def product_flops(sizes: argparse.Namespace) -> float | None:
    """Floating-point operations of a step in the head's matrix products; None for other heads.

    Forward, and twice that for the gradients, for every image with every caption of each stream;
    mining has two such matrices. Of hardest negatives SGR takes the gradients of three pairs a
    caption.
    """
    if sizes.head not in ("sgr", "saf"):
        return None
    dim, sim, words = sizes.embed_dim, sizes.sim_dim, sum(sizes.words) / 2
    nodes = words + 1
    pair = 4 * sizes.regions * words * dim + 2 * words * dim * sim
    if sizes.head == "sgr":  # two whole steps of reasoning, and one for the global node
        pair += 2 * nodes * (4 * sim * sim + 4 * nodes * sim) + 4 * nodes * sim
    else:
        pair += 4 * nodes * sim
    matrices = 1 if streams(sizes.method) == ("pairs",) else 2
    backward = float(matrices)
    if sizes.head == "sgr" and sizes.method in ("l2rm", "triplet"):
        backward += min(1.0, 3 / sizes.batch) - 1.0
    return (matrices + 2 * backward) * pair * sizes.batch**2


if __name__ == "__main__":
    start(main)
