"""A run in progress: its data, model, state and position, and the operations of the training loop.

The loop itself is `l2rm_jax/train.py`.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.batches import scoring_batches
from l2rm_jax.data.features import LazyRows
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import advise_on_memory
from l2rm_jax.devices.operations import operations_of
from l2rm_jax.devices.parallel import AXIS, Replicas, RunAhead
from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.methods import EpochPlan, make_method
from l2rm_jax.methods.base import TrainState, skip_non_finite
from l2rm_jax.methods.networks import combine_scores, vectors_of_networks
from l2rm_jax.methods.pair_values import initial_state, replace_pair_values
from l2rm_jax.models import make_model
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.health import Health, make_reference, require_finite
from l2rm_jax.run.inputs import check_train_size
from l2rm_jax.run.load_trained import with_start
from l2rm_jax.run.memory import ResidentImages, scoring_hints, training_hints
from l2rm_jax.run.pair_scores import collect_rows, encode_images
from l2rm_jax.run.pretrained import pretrained_arrays, with_pretrained, with_word_vectors
from l2rm_jax.run.sampling import draw_pairs


class Run:
    """A run in progress.

    Attributes:
      config: config of the run.
      replicas: the devices.
      data: training, validation and test split, vocabulary and mismatch.
      model: the retrieval model, with the axis name of the devices.
      method: the method that trains it.
      state: the method's `TrainState`, replicated on every device.
      plan: the plan of the running epoch; None between epochs.
      position: progress of the run, as it is saved: `epoch` (finished epochs), `best_rsum` (best
        validation rSum), `seconds` (training time at the last save), and within an epoch
        `epoch_start` (training time at its start), `step_in_epoch` and the keys of `Means.state`.
      health: the warnings so far.
      workdir, checkpoints: its work directory, and the checkpoints there; set by `open_run`.
      resident: the training images on the devices; set by `begin_epoch`.
    """

    workdir: Path
    checkpoints: RunCheckpoints
    resident: ResidentImages | None = None

    def __init__(self, config: ConfigDict, data: Data, replicas: Replicas):
        self.config, self.data, self.replicas = config, data, replicas
        fields = ("stored_image", "lengths", "posterior", "rematched", "scores")
        pairs = {name: getattr(data.train, name) for name in fields}
        inputs = {"config": config.to_dict(), "words": len(data.vocabulary), **pairs}
        replicas.require_same_on_hosts(inputs, "config and training pairs")
        bases = data.pretrained.bases if data.pretrained else None
        self.model = make_model(config, len(data.vocabulary), AXIS, bases)
        self.method = make_method(self.model, config)
        check_train_size(config, data.train, self.method)  # as the judgement may have dropped pairs
        self._reference = make_reference(config, data.dev, self.method)
        self._scorer = Scorer(self.model, replicas, config.evaluation.batch_size)
        self._train_step = replicas.map(skip_non_finite(self.method.step), donate=True)
        self._run_ahead = RunAhead()
        self._map = functools.cache(replicas.map)  # one compilation per scoring function
        sample = EpochPlan({"sample": np.arange(len(data.train))})
        self._sample = next(self.stream(sample, 0).iterate())["sample"]
        state = self.initial_state(jax.random.key(config.seed))
        self._abstract_state = jax.eval_shape(lambda: state)
        self.state = replicas.replicate(state)
        self.plan: EpochPlan | None = None
        self.position: dict[str, Any] = {"epoch": 0, "best_rsum": -1.0, "seconds": 0.0}
        self.health = Health(self._reference)
        self._start_clock()

    def initial_state(self, key: jax.Array) -> TrainState:
        """State of the method before its first step, on one device."""
        state = initial_state(self.method, key, self._sample, len(self.data.train))
        if self.data.word_vectors is not None:
            params = with_word_vectors(state.params, self.data.word_vectors)
            state = state.replace(params=params)
        if self.data.pretrained is not None:
            arrays = pretrained_arrays(self.data.pretrained, self.config, state.params)
            state = with_pretrained(state, arrays)
        if self.data.start is not None:
            state = with_start(state, self.data.start)
        return state

    def _start_clock(self) -> None:
        self._clock = time.monotonic() - self.position["seconds"]

    @property
    def seconds(self) -> float:
        """Seconds of training so far, including those before a resume."""
        return time.monotonic() - self._clock

    @property
    def epoch_seconds(self) -> float:
        """Seconds of training in the running epoch, including those before a resume."""
        return self.seconds - self.position["epoch_start"]

    @property
    def step(self) -> int:
        """Number of training steps so far."""
        return int(self.state.step)

    @property
    def total_epochs(self) -> int:
        """Number of epochs of the method, or that the config asks for, warm-up included."""
        return self.method.epochs or self.config.train.warmup_epochs + self.config.train.epochs

    @property
    def header(self) -> dict:
        """Fields of every log record and of the results: data, method, head, mismatch."""
        config = self.config
        names = {"data": config.data.name, "method": config.method, "head": config.model.head}
        if self.method.networks > 1:
            names["networks"] = self.method.networks
        return {**names, **self.data.mismatch.row()}

    def restore(self) -> bool:
        """Restore the newest checkpoint; returns whether there is one.

        Raises:
          CheckpointError: there are checkpoints, but none can be restored.
          ConfigError: the hosts find different checkpoints.
        """
        resumed = self.checkpoints.restore_latest(self._abstract_state)
        position = None if resumed is None else resumed.position
        self.replicas.require_same_on_hosts(position, "newest checkpoint")
        if resumed is None:
            return False
        self.state = self.replicas.replicate(resumed.state)
        self.position = resumed.position
        self.health = Health(self._reference, self.position["health"])
        if resumed.plan:
            once = frozenset(self.position.get("once", ()))
            self.plan = EpochPlan(dict(resumed.plan), self.position["report"], once=once)
        self._start_clock()
        return True

    def best_state(self) -> TrainState:
        """The state of the best checkpoint, on one device."""
        return self.checkpoints.restore_best(self._abstract_state)

    def restore_best(self) -> None:
        """Replace the state by the state of the best checkpoint."""
        self.state = self.replicas.replicate(self.best_state())

    def make_plan(self, epoch: int) -> EpochPlan:
        """Make the plan of an epoch (counted from 0): which pairs it trains on.

        Raises:
          ConfigError: the hosts made different plans.
          DivergedError: the scores of the training pairs are not finite.
        """
        plan = self.method.plan(self.score_pairs(epoch), self.data.train, epoch)
        if self.config.train.draw != "even":
            plan = draw_pairs(plan, self.data.train, self.config.seed, epoch)
        made = [plan.streams, plan.values]
        self.replicas.require_same_on_hosts(made, f"plan of epoch {epoch + 1}")
        if plan.values:
            state = replace_pair_values(self.replicas.unreplicate(self.state), plan.values)
            self.state = self.state.replace(own=self.replicas.replicate(state.own))
        return plan

    @functools.cached_property
    def fits(self) -> list[tuple[TrainState, dict[str, float]]]:
        """The models that are fitted in closed form, with how each was fitted."""
        state = self.replicas.unreplicate(self.state)
        fits = self.method.fit(state, self.data.train)
        self.replicas.require_same_on_hosts([s.params for s, _ in fits], "fitted models")
        return fits

    def is_compiled(self, batch: dict[str, Batch]) -> bool:
        """Whether `train_step` is compiled for the shapes of this batch."""
        return self._train_step.is_compiled(self.state, batch)

    def step_operations(self, batch: dict[str, Batch]) -> float:
        """Count the operations of the matrix products of `train_step` on one device."""
        step = jax.make_jaxpr(self._train_step.function)
        return operations_of(step(self.state, batch).jaxpr)

    def compile_step(self, batch: dict[str, Batch], wait: Callable[[Future], Any]) -> None:
        """Compile `train_step` for the shapes of this batch, without running it.

        Args:
          batch: a step's batches by stream name, from `shard`.
          wait: waits for the future of the compilation and returns its result.
        """
        with self._training_memory():
            self._train_step.compile(self.state, batch, wait=wait)

    def compile_main_step(self, epoch: int) -> None:
        """Start to compile the step that follows the warm-up, while the warm-up trains.

        Not on a GPU, whose compiler tries kernels out on the device and would disturb the training.

        Args:
          epoch: the running epoch of the warm-up, counted from 0.
        """
        streams = self.method.streams
        if streams.keys() == self.plan.streams.keys() or not self.replicas.compile_on_host:
            return
        pairs = np.arange(len(self.data.train))
        several = pairs[:, None, None]
        rows = {s: pairs if n == 1 else np.tile(several, (1, n, 2)) for s, n in streams.items()}
        batch = next(self.stream(EpochPlan(rows), epoch).iterate())
        self._train_step.compile_ahead(self.state, self.shard(batch))

    def train_step(self, batch: dict[str, Batch]) -> dict[str, jax.Array]:
        """Do one update and return its metrics, which may still be on the device."""
        with self._training_memory():
            self.state, metrics = self._train_step(self.state, batch)
            self._run_ahead.limit(metrics)
        return self.replicas.unreplicate(metrics)

    def _training_memory(self) -> contextlib.AbstractContextManager:
        """Context of work on a training batch: adds advice if a device runs out of memory."""
        hints = training_hints(self.config, self.model.is_product)
        return advise_on_memory(f"training, {self.config.train.batch_size} pairs per batch", hints)

    def shard(self, batch: Any) -> Any:
        """Split this host's share of batches over its devices, and add images that stay there."""
        shards = self.replicas.shard(batch)
        return shards if self.resident is None else self.resident.add_to(shards)

    def validate(self) -> dict[str, float]:
        """Recalls of the current model on the validation split.

        Raises:
          DivergedError: the similarities are not finite, or parameters are so large that their norm
            is not: vectors that are divided by such a norm become zero, without any NaN.
        """
        params = jax.tree.leaves(self.state.params)
        with np.errstate(over="ignore"):
            norm = math.sqrt(sum(float(np.vdot(x, x)) for x in map(np.asarray, params)))
        epoch = int(self.state.epoch) + 1
        require_finite({"norm of the parameters": norm}, self.step, epoch)
        return recalls(self.score(self.data.dev), self.data.dev.captions_per_image)

    def score(self, split: TrainPairs, score: Callable = Scorer.similarities, *inputs: Any) -> Any:
        """Score any split with the current model.

        Args:
          split: the split.
          score: method of `Scorer` to call; similarities of all pairs by default.
          *inputs: its further arguments.

        Raises:
          DivergedError: the scores are not finite.
        """
        networks = [self._variables(n) for n in range(self.method.networks)]
        hints = scoring_hints(self.config, self.model.is_product)
        with advise_on_memory(f"scoring {split.split}", hints):
            scores = combine_scores([score(self._scorer, n, split, *inputs) for n in networks])
        epoch = int(self.state.epoch) + 1
        for values in jax.tree.leaves(scores):
            require_finite({f"similarities of {split.split}": values}, self.step, epoch)
        return scores

    def _variables(self, n: int) -> dict[str, Any]:
        """Parameters and statistics of network n, on every device of this host."""
        variables = {"params": self.state.params, "batch_stats": self.state.batch_stats}
        variables = self.replicas.to_host(variables)
        if self.method.networks == 1:
            return variables
        return jax.tree.map(lambda leaf: leaf[n], variables)

    def stream(self, plan: EpochPlan, epoch: int) -> TrainStream:
        """The batches of an epoch (counted from 0) that trains on `plan`."""
        return TrainStream(
            self.data.train,
            plan.streams,
            batch_size=self.config.train.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            max_words=self.config.data.max_words,
            queue_length=self.method.queue_length,
            share=self.replicas.share,
            once=plan.once,
            length_groups=self.config.train.length_groups,
            read_images=self.resident is None,
        )

    def score_pairs(self, epoch: int) -> Callable:
        """Make the function `score_pairs(score)` that `Method.plan` calls.

        It maps `score(state, batch)`, which returns an array `[B, ...]` or a tree of such arrays,
        over all training pairs, each exactly once, in batches shuffled by (seed, epoch). It returns
        arrays `[N, ...]` in the order of the pairs. If the head compares two vectors by their
        product, each image is encoded once, and the batches have its vectors.
        """
        config, pairs = self.config, self.data.train
        shares = {"batch_size": config.train.batch_size, "share": self.replicas.share}
        order = {"seed": config.seed, "epoch": epoch, "read_images": self.resident is None}
        order["max_words"] = config.data.max_words

        @functools.cache
        def vectors() -> LazyRows | None:
            if not self.model.is_product:
                return None
            encode = partial(self.apply, vectors_of_networks(self.model, self.method.networks))
            return encode_images(pairs, encode, title=f"epoch {epoch + 1}: encoding", **shares)

        def score_pairs(score: Callable) -> Any:
            batches = scoring_batches(pairs, **shares, **order, vectors=vectors())
            title = f"epoch {epoch + 1}: scoring"
            values = collect_rows(batches, partial(self.apply, score), len(pairs), title)
            for leaf in jax.tree.leaves(values):
                require_finite({"scores of the training pairs": leaf}, self.step, epoch + 1)
            return values

        return score_pairs

    def apply(self, function: Callable, batch: Batch) -> Any:
        """Compute `function(state, batch)` on all devices, without changing the state.

        Args:
          function: pure function; its result must be the same on every device.
          batch: this host's share of the batch.
        """
        with self._training_memory():
            values = self._map(function)(self.state, self.shard(batch))
        return self.replicas.unreplicate(values)

    def save(self) -> None:
        """Save a checkpoint with all that a resume needs."""
        plan = self.plan or EpochPlan({})
        self.position["seconds"] = self.seconds
        position = {**self.position, "report": plan.report, "health": self.health.history}
        position |= {"once": sorted(plan.once)} if plan.once else {}
        self.checkpoints.save(self.step, self.state, plan.streams, position)

    def finish_epoch(self, epochs: int, rsum: float) -> None:
        """Save the end of an epoch, and the best checkpoint unless an earlier `rsum` was higher.

        Args:
          epochs: number of finished epochs, this one included.
          rsum: validation rSum of this epoch.
        """
        best = self.position["best_rsum"]
        if rsum >= best:  # of equal epochs, the last
            self.checkpoints.save_best(self.step, self.state)
        self.plan = None
        self.position = {"epoch": epochs, "best_rsum": max(rsum, best)}
        self.save()
