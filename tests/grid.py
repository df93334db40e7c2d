"""Tiny configs, batches and states for every method with every head, without compilation."""

import functools
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from l2rm_jax.config import NEEDED_HEADS
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.methods import METHODS, Method, TrainState, make_method
from l2rm_jax.methods.pair_values import initial_state
from l2rm_jax.models import HEADS, make_model
from tests import tiny

SIZE, VOCABULARY, WORDS = 8, 300, 12
WARMUP, MAIN = range(2)  # the epochs of the tiny run
STEPPING = [name for name in METHODS if name not in NEEDED_HEADS]  # the others are fitted
CELLS = list(itertools.product(STEPPING, HEADS))


def tiny_config(method: str, head: str):
    config = tiny.tiny_config(method, head, batch_size=SIZE, epochs=1)
    config.data.update(scenes_train=8, scenes_dev=2, scenes_test=2)
    config.mismatch.protocol, config.mismatch.paired_images = "semi_paired", 3
    # All streams from the first epoch after the warm-up on.
    config.co_teaching.mismatched_epoch = config.sps.clean_epoch = config.sps.noisy_epoch = 0
    config.cream.hard_epoch = config.cream.noisy_epoch = 0
    config.in2r.queue_length = 16
    config.de.image_gru = config.de.text_gru = config.de.filters = 4
    return config


def small_model(head: str, vocabulary_size: int, axis_name: str | None = None, **fields):
    """A model of small sizes; `fields` are fields of the config's section `model`."""
    config = tiny_config("triplet", head)
    config.model.update({"dropout": 0.0, **fields})
    return make_model(config, vocabulary_size, axis_name)


@functools.cache
def pairs() -> TrainPairs:
    config = tiny_config("l2rm", "saf")
    return load_data(config.data, config.mismatch, workdir=None).train


class Cell(NamedTuple):
    """A method, the shapes of its state, and a sample batch."""

    method: Method
    state: Any
    sample: Any


def make_cell(config) -> Cell:
    method = make_method(make_model(config, VOCABULARY), config)
    sample = next(stream({"sample": np.arange(len(pairs()))}, 0))["sample"]
    return Cell(method, jax.eval_shape(partial(start, method), jax.random.key(0), sample), sample)


def start(method: Method, key: jax.Array, sample: Any) -> TrainState:
    """The state of a run before its first step."""
    return initial_state(method, key, sample, len(pairs()))


def batches(cell: Cell, epoch: int) -> Iterator[dict]:
    """The batches of an epoch, all of one shape; its plan is made from random scores."""
    rng = np.random.default_rng(epoch)

    def draw(x: jax.ShapeDtypeStruct) -> np.ndarray:
        values = rng.uniform(size=(len(pairs()), *x.shape[1:]))
        return values < 0.5 if x.dtype == bool else values

    def score_pairs(score):
        shapes = jax.eval_shape(score, cell.state, cell.sample)
        return jax.tree.map(draw, shapes)

    return stream(cell.method.plan(score_pairs, pairs(), epoch).streams, epoch)


def stream(streams: dict, epoch: int) -> Iterator[dict]:
    """Batches of these streams, all of one shape."""
    settings = {"batch_size": SIZE, "seed": 0, "epoch": epoch}
    return TrainStream(pairs(), streams, **settings, max_words=WORDS, buckets=(WORDS,)).iterate()
