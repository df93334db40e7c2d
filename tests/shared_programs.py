"""Runs of the same model, method and devices share traced and compiled programs.

Tracing and compiling takes most of the time of a tiny run, and the next one would repeat it. A test
module asks for it with `pytestmark = pytest.mark.usefixtures("shared_programs")`; its tests must
not replace functions that are called while a program is traced.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict

from l2rm_jax.devices import parallel
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.methods import Method
from l2rm_jax.methods.closed_form import FITTED_HEAD
from l2rm_jax.run import run

# All that a method reads of some sections. It is given nothing else, so that reading it fails.
READ = {
    "data": (),
    "evaluation": (),
    "mismatch": ("protocol",),
    "split": ("by",),
    "train": (
        *("batch_size", "warmup_epochs", "epochs", "draw", "weight", "weight_curve", "networks"),
    ),
}
# Methods whose later epochs depend on the number of epochs.
COUNTS_EPOCHS = ("crcl", "ncr", "bicro", "sps", "cream", "in2r")


@contextmanager
def shared_programs() -> Iterator[None]:
    """Let the runs that are opened within a `with` block share their programs."""
    make, guard, scorer, map_step = run.make_method, run.skip_non_finite, run.Scorer, Replicas.map
    make = remember(make, lambda model, config: (model, config.to_json()))
    make_init = remember(shared_init, lambda method: id(method))

    def make_method(model: Any, config: ConfigDict) -> Method:
        method = make(model, what_is_read(config))
        return replace(method, init=make_init(method))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_method", make_method)
        patch.setattr(run, "skip_non_finite", functools.cache(guard))
        patch.setattr(
            run,
            "Scorer",
            remember(scorer, lambda m, on, size: (m, *on.devices, size, parallel.MAPPED_BY)),
        )
        patch.setattr(
            Replicas,
            "map",
            remember(
                map_step,
                lambda on, step, donate=False: (*on.devices, step, donate, parallel.MAPPED_BY),
            ),
        )
        yield


def remember(function: Callable, key_of: Callable) -> Callable:
    """Let `function` be called once for each key of its inputs."""
    results: dict = {}

    def remembered(*inputs: Any, **settings: Any) -> Any:
        key = key_of(*inputs, **settings)
        if key not in results:
            results[key] = function(*inputs, **settings)
        return results[key]

    return remembered


def what_is_read(config: ConfigDict) -> ConfigDict:
    """The part of a config that methods read."""
    part = config.copy_and_resolve_references()
    for section, fields in READ.items():
        part[section] = {field: config[section][field] for field in fields}
    if config.model.head != FITTED_HEAD:
        del part.train.draw
    if config.method not in COUNTS_EPOCHS:
        del part.train.epochs
    return part


def shared_init(method: Method) -> Callable:
    """Initialise a state once for each key and shapes of the batch."""

    def inputs_key(key: jax.Array, batch: Any) -> tuple:
        leaves, structure = jax.tree.flatten(batch)
        return str(jax.random.key_data(key)), structure, *((x.shape, x.dtype) for x in leaves)

    return remember(method.init, inputs_key)
