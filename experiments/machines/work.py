"""Count the work of a training step in its traced program: operations and bytes received."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.extend.core
import numpy as np
from ml_collections import ConfigDict

from experiments.bench.measure import VOCABULARY, config_of
from l2rm_jax.data.batches import Batch
from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.devices.parallel import AXIS
from l2rm_jax.methods import make_method
from l2rm_jax.methods.base import Method, TrainState
from l2rm_jax.methods.pair_values import initial_state
from l2rm_jax.models import make_model


class Work(NamedTuple):
    """Work of one device in one step.

    Attributes:
      operations: floating-point operations of the matrix products.
      received: bytes received from other devices.
    """

    operations: float
    received: float

    def times(self, count: int) -> "Work":
        """The work of `count` repetitions."""
        return Work(self.operations * count, self.received * count)


def step_config(sizes: argparse.Namespace) -> ConfigDict:
    """Return the config of a benchmark that trains, without a warm-up."""
    config = config_of(sizes)
    config.method, config.train.warmup_epochs = sizes.method, 0
    if sizes.method == "rcsl":
        config.mismatch.protocol = SEMI_PAIRED
    return config


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


def bench_operations(sizes: argparse.Namespace) -> float:
    """Return the operations of a benchmark's step on one device."""
    shapes = mean_words(sizes), sizes.regions, sizes.features
    return step_work(step_config(sizes), 1, *shapes).operations


def mean_words(sizes: argparse.Namespace) -> int:
    """Return the mean number of words of a benchmark's captions."""
    return int(np.mean(sizes.words))


def step_work(
    config: ConfigDict, devices: int, words: int, regions: int = 36, features: int = 2048
) -> Work:
    """Return the work of one device in a step after the warm-up.

    Args:
      config: the run's config; the devices share its batch.
      devices: number of devices.
      words: words of every caption.
      regions: regions of every image.
      features: numbers per region.
    """
    method, state, batch = step_inputs(config, devices, words, regions, features)
    program = jax.make_jaxpr(method.step, axis_env=[(AXIS, devices)])(state, batch)
    return work_of(program.jaxpr, devices)


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


def work_of(program: jax.extend.core.Jaxpr, devices: int) -> Work:
    """Return the work of a traced function.

    A loop of known length counts that many times; of the branches of a conditional the largest
    counts. A loop whose length depends on the data counts once. Those loops are the transport and
    the gradients of hardest negatives, which are small beside the rest.
    """
    total = Work(0.0, 0.0)
    for equation in program.eqns:
        own = _equation_work(equation, devices)
        total = Work(total.operations + own.operations, total.received + own.received)
    return total


def _equation_work(equation, devices: int) -> Work:
    name, others = equation.primitive.name, (devices - 1) / devices
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        factor = equation.invars[0].aval
        length = np.prod([factor.shape[axis] for axis in contracted], dtype=float)
        return Work(2.0 * equation.outvars[0].aval.size * length, 0.0)
    if name == "all_gather":
        return Work(0.0, _bytes(equation.outvars) * others)
    if name in ("reduce_scatter", "psum_scatter"):
        return Work(0.0, _bytes(equation.invars) * others)
    if name.startswith("psum"):  # a ring scatters the sum, then gathers it
        return Work(0.0, 2 * _bytes(equation.invars) * others)
    inner = [work_of(program, devices) for program in _programs(equation.params)]
    if name == "cond":
        return Work(*np.max(inner, axis=0))
    repetitions = equation.params["length"] if name == "scan" else 1
    return Work(*np.sum(inner, axis=0)).times(repetitions) if inner else Work(0.0, 0.0)


def _bytes(variables) -> float:
    return float(sum(x.aval.size * x.aval.dtype.itemsize for x in variables))


def _programs(parameters: dict) -> Iterator[jax.extend.core.Jaxpr]:
    """Yield the functions among the parameters of an operation."""
    for leaf in jax.tree.leaves(list(parameters.values())):
        program = getattr(leaf, "jaxpr", leaf)
        if isinstance(program, jax.extend.core.Jaxpr):
            yield program
