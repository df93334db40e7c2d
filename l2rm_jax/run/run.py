"""A run: its data and model, where it stands, and what it can be asked; the loop is `train.py`."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.console import progress_bar
from l2rm_jax.data.batches import Batch, scoring_batches
from l2rm_jax.data.pairs import Data, PairDataset
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.devices.hosts import exit_on_host_failure, require_shared_directory
from l2rm_jax.devices.parallel import AXIS, Replicas, matmul_precision
from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.methods import EpochPlan, make_method
from l2rm_jax.methods.base import skip_non_finite
from l2rm_jax.models import make_model
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.health import Health, make_reference, require_finite


@contextlib.contextmanager
def open_run(
    config: ConfigDict, data: Data, workdir: str | Path, replicas: Replicas
) -> Iterator["Run"]:
    """The run in `workdir`, its model made, nothing trained or restored; `data` by `read_data`."""
    directory = Path(workdir) / "checkpoints"
    with matmul_precision(config.precision):
        run = Run(config, data, replicas)
        # `exit_on_host_failure` is the inner one: where a host is gone, its part of a save never comes.
        with RunCheckpoints(directory) as run.checkpoints, exit_on_host_failure():
            require_shared_directory(directory)
            yield run


class Run:
    """A run in progress.

    Attributes:
      config: of the run.
      data: what it trains, validates and tests on.
      model: mapped over the devices, with their axis.
      method: what it learns by.
      state: the method's `TrainState`, on every device.
      plan: what the running epoch trains on; None between epochs.
      position: where it stands: `epoch` (epochs done), `best_rsum` (of the validations so far),
        `seconds` (trained, when last saved), and within an epoch `step_in_epoch` and the `state` of
        `run_log.Means`.
      health: the warnings so far.
      checkpoints: of the work directory; set by `open_run`.
    """

    checkpoints: RunCheckpoints

    def __init__(self, config: ConfigDict, data: Data, replicas: Replicas):
        self.config, self.data = config, data
        self._replicas = replicas
        pairs = {"stored_image": data.train.stored_image, "lengths": data.train.lengths}
        seen = {"config": config.to_dict(), "words": len(data.vocabulary), **pairs}
        replicas.require_same_on_hosts(seen, "config and training pairs")
        self.model = make_model(config.model, len(data.vocabulary), AXIS)
        self.method = make_method(self.model, config)
        self._reference = make_reference(config, data.dev, self.method.losses)
        self._scorer = Scorer(self.model, replicas, config.evaluation.batch_size)
        self._train_step = replicas.map(skip_non_finite(self.method.step), donate=True)
        self._mapped = functools.cache(replicas.map)  # one compilation per scoring function
        sample = next(self.stream(EpochPlan({"sample": np.arange(len(data.train))}), 0).iterate())
        state = self.method.init(jax.random.key(config.seed), sample["sample"])
        self._abstract = jax.eval_shape(lambda: state)
        self.state = replicas.replicate(state)
        self.plan: EpochPlan | None = None
        self.position: dict[str, Any] = {"epoch": 0, "best_rsum": -1.0, "seconds": 0.0}
        self.health = Health(self._reference)
        self._start_clock()

    def _start_clock(self) -> None:
        self._clock = time.monotonic() - self.position["seconds"]

    @property
    def seconds(self) -> float:
        """How long the run has trained, all its sessions exit_on_host_failure."""
        return time.monotonic() - self._clock

    @property
    def step(self) -> int:
        return int(self._replicas.unreplicate(self.state.step))

    @property
    def header(self) -> dict:
        """What every log line and result row carries."""
        config = self.config
        names = {"data": config.data.name, "method": config.method, "head": config.model.head}
        return {**names, **self.data.mismatch.row()}

    @property
    def title(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self.header.items())

    def describe(self) -> str:
        """What is trained on what, for a person."""
        train, max_words = self.data.train, self.config.data.max_words
        clipped = np.count_nonzero(train.lengths > max_words)
        sizes = ", ".join(
            f"{split.split} {len(split.images)} images / {len(split)} captions"
            for split in self.data.splits
        )
        return (
            f"{self.title}\n{sizes}; {clipped} training captions clipped at {max_words} tokens; "
            f"{len(self._replicas)} device(s) on {self._replicas.share.hosts} host(s)"
        )

    def restore(self) -> bool:
        """Continues from the newest checkpoint; whether there is one."""
        resumed = self.checkpoints.restore_latest(self._abstract)
        found = None if resumed is None else resumed.position
        self._replicas.require_same_on_hosts(found, "newest checkpoint")
        if resumed is None:
            return False
        self.state = self._replicas.replicate(resumed.state)
        self.position = resumed.position
        # A run from before there were warnings kept none.
        self.health = Health(self._reference, self.position.get("health"))
        if resumed.plan:
            self.plan = EpochPlan(dict(resumed.plan), self.position["report"])
        self._start_clock()
        return True

    def adopt(self, variables: dict, cost: dict | None) -> dict[str, float]:
        """Takes over a model that was trained elsewhere; training goes on after the warm-up.

        Optimisers start afresh. The model is validated and saved as the newest and the best one.

        Args:
          variables: "params" and "batch_stats".
          cost: parameters of L2RM's learned cost; None keeps the initial ones.

        Returns:
          The validation recalls.
        """
        state = self._replicas.unreplicate(self.state).replace(**variables)
        if cost is not None:
            state = state.replace(own={**state.own, "cost": cost})
        self.state = self._replicas.replicate(state)
        row = self.validate()
        self.finish_epoch(self.config.train.warmup_epochs, row["rsum"])
        return row

    def restore_best(self) -> None:
        """Takes the best model so far for what follows."""
        self.state = self._replicas.replicate(self.checkpoints.restore_best(self._abstract))

    def start_epoch(self, epoch: int) -> None:
        """Lets the device know which epoch it is."""
        self.state = self.state.replace(epoch=self._replicas.replicate(np.int32(epoch)))

    def make_plan(self, epoch: int) -> EpochPlan:
        """What the epoch is to train on."""
        plan = self.method.plan(self.score_pairs(epoch), self.data.train, epoch)
        self._replicas.require_same_on_hosts(plan.streams, f"plan of epoch {epoch + 1}")
        return plan

    def is_compiled(self, batch: dict[str, Batch]) -> bool:
        """Whether `train_step` is compiled for batches of these shapes."""
        return self._train_step.is_compiled(self.state, self._shards(batch))

    def compile_step(self, batch: dict[str, Batch], wait: Callable[[Future], Any]) -> None:
        """Compiles `train_step` for batches of these shapes; the state stays as it is."""
        self._train_step.compile(self.state, self._shards(batch), wait=wait)

    def train_step(self, batch: dict[str, Batch]) -> dict[str, jax.Array]:
        """One update from this host's share of a step's batches; its metrics, still on the
        device."""
        self.state, metrics = self._train_step(self.state, self._shards(batch))
        return self._replicas.unreplicate(metrics)

    def _shards(self, batch: dict[str, Batch]) -> dict[str, Batch]:
        return {name: self._replicas.shard(b) for name, b in batch.items()}

    def validate(self) -> dict[str, float]:
        """Recalls of the validation split under the model as it is."""
        dev = self.data.dev
        return recalls(self._score(dev), dev.captions_per_image)

    def score_test(self, score: Callable = Scorer.similarities, *inputs: Any) -> Any:
        """What a function of `Scorer` finds on the test split under the best model so far."""
        self.restore_best()
        return self._score(self.data.test, score, *inputs)

    def _score(
        self, split: PairDataset, score: Callable = Scorer.similarities, *inputs: Any
    ) -> Any:
        variables = {"params": self.state.params, "batch_stats": self.state.batch_stats}
        found = score(self._scorer, variables, split, *inputs)
        epoch = int(self._replicas.unreplicate(self.state.epoch)) + 1
        for values in jax.tree.leaves(found):
            require_finite({f"similarities of {split.split}": values}, self.step, epoch)
        return found

    def stream(self, plan: EpochPlan, epoch: int) -> TrainStream:
        """The batches of an epoch that trains on `plan`."""
        return TrainStream(
            self.data.train,
            plan.streams,
            batch_size=self.config.train.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            max_words=self.config.data.max_words,
            queue_length=self.config.l2rm.queue_length,
            share=self._replicas.share,
        )

    def score_pairs(self, epoch: int) -> Callable:
        """The function that a method's plan calls: every training pair scored exactly once.

        `score_pairs(epoch)(score)` maps `score(state, batch) -> [B, ...]`, or a tree of such
        arrays, over all pairs, in batches shuffled by (seed, epoch), and returns the values in the
        order of the pairs.
        """

        def score_pairs(score: Callable) -> Any:
            total, values = len(self.data.train), None
            batches = scoring_batches(
                self.data.train,
                batch_size=self.config.train.batch_size,
                seed=self.config.seed,
                epoch=epoch,
                max_words=self.config.data.max_words,
                share=self._replicas.share,
            )
            with progress_bar(total, f"epoch {epoch + 1}: scoring") as bar:
                for batch, rows in batches:
                    found = jax.tree.map(np.asarray, self.apply(score, batch))
                    if values is None:
                        values = jax.tree.map(functools.partial(_rows_like, total), found)
                    for all_of, these in zip(*map(jax.tree.leaves, (values, found)), strict=True):
                        all_of[rows] = these[: len(rows)]
                    bar.update(len(rows))
            for leaf in jax.tree.leaves(values):
                require_finite({"scores of the training pairs": leaf}, self.step, epoch + 1)
            return values

        return score_pairs

    def apply(self, function: Callable, batch: Batch) -> Any:
        """`function(state, batch)` of this host's share of a batch and the others' theirs, on all
        devices; the state stays as it is."""
        values = self._mapped(function)(self.state, self._replicas.shard(batch))
        return self._replicas.unreplicate(values)

    def save(self) -> None:
        """Saves all that a resumed run needs."""
        plan = self.plan or EpochPlan({})
        self.position["seconds"] = self.seconds
        position = {**self.position, "report": plan.report, "health": self.health.history}
        state = self._replicas.unreplicate_for_checkpoint(self.state)
        self.checkpoints.save(self.step, state, plan.streams, position)

    def finish_epoch(self, epochs: int, rsum: float) -> None:
        """Saves the end of an epoch: `epochs` are done, the last one validated at `rsum`."""
        best = self.position["best_rsum"]
        if rsum > best:
            self.checkpoints.save_best(
                self.step, self._replicas.unreplicate_for_checkpoint(self.state)
            )
        self.plan = None
        self.position = {"epoch": epochs, "best_rsum": max(rsum, best)}
        self.save()


def _rows_like(rows: int, x: np.ndarray) -> np.ndarray:
    """An array to be filled, of so many rows like those of x."""
    return np.empty((rows, *x.shape[1:]), x.dtype)
