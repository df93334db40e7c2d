"""The training loop: one for every method and every head."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.checkpoint import RunCheckpoints, check_config, write_config
from l2rm_jax.config import check_fields
from l2rm_jax.data.batches import Batch, TrainStream, check_batch_size, scoring_batches
from l2rm_jax.data.dataset import Data, PairDataset, keep_data, load_data
from l2rm_jax.health import Health, reference_of, require_finite
from l2rm_jax.methods import EpochPlan, make_method
from l2rm_jax.models import make_model
from l2rm_jax.parallel import AXIS, Replicas
from l2rm_jax.recall import check_protocols, parse_protocols, recall_rows, recalls, table
from l2rm_jax.run_log import (
    Means,
    RunLog,
    average,
    progress_bar,
    require_tensorboard,
    versions,
    write_results,
)
from l2rm_jax.scoring import Scorer


def train(
    config: ConfigDict,
    workdir: str | Path,
    replicas: Replicas | None = None,
    on_epoch: Callable[["Run", int], None] | None = None,
) -> dict:
    """Trains, validating each epoch, and tests the best model; continues what `workdir` holds.

    Args:
      config: as `l2rm_jax.config.default` describes it.
      workdir: directory of the run.
      replicas: devices to train on; all local ones when None.
      on_epoch: `(run, epochs done)`, called after an epoch's validation and before its checkpoint:
        what an experiment wants to measure along the way. A run that is stopped in between calls
        it again for the same epoch.

    Returns:
      What `results.json` holds: config, versions, mismatch, test recalls, rsum, warnings, wall
      time.

    Raises:
      L2RMError: the config, the data or the workdir's checkpoints do not fit; nothing of another
        run is overwritten. Or the run diverged.
    """
    if config.train.tensorboard:
        require_tensorboard()
    check_config(workdir, config.to_dict())
    data = read_data(config, workdir)
    replicas = replicas or Replicas()
    replicas.check_batch(config.train.batch_size)
    with open_run(config, data, workdir, replicas) as run:
        write_config(workdir, config.to_dict())
        keep_data(run.data, workdir)
        position = run.restore()
        resume_step = run.step if position else None
        tensorboard = config.train.tensorboard
        with RunLog(workdir, run.header, resume_step=resume_step, tensorboard=tensorboard) as log:
            log.say(run.describe())
            run.fit(log, position or {"epoch": 0, "best_rsum": -1.0, "seconds": 0.0}, on_epoch)
            test = run.data.test
            sims = run.test_similarities()
            rows = recall_rows(sims, test.captions_per_image, config.evaluation.protocol)
            log.say(f"\n{run.title}\n{table(rows)}")
    results = {
        **run.header,
        "seed": config.seed,
        "test": rows,
        "rsum": next(iter(rows.values()))["rsum"],
        "best_validation_rsum": run.position["best_rsum"],
        "warnings": run.health.warnings,
        "seconds": run.position["seconds"],
        "versions": versions(),
        "config": config.to_dict(),
    }
    write_results(workdir, results)
    return results


def read_data(config: ConfigDict, workdir: str | Path) -> Data:
    """The data of a run, its config refused where it can be: no device is touched, no file written.

    Raises:
      ConfigError, DataError: a field, a name or a file is not what it should be.
    """
    check_fields(config)
    # Names that do not exist show before the data are read; the vocabulary's size comes later.
    parse_protocols(config.evaluation.protocol)
    make_method(make_model(config.model, vocabulary_size=1), config)
    data = load_data(config.data, config.mismatch, workdir=workdir)
    check_batch_size(data.train, config.train.batch_size)
    test = data.test
    check_protocols(config.evaluation.protocol, len(test.images), test.captions_per_image)
    return data


@contextlib.contextmanager
def open_run(
    config: ConfigDict, data: Data, workdir: str | Path, replicas: Replicas
) -> Iterator["Run"]:
    """The run in `workdir`, its model made, nothing trained or restored; `data` by `read_data`."""
    run = Run(config, data, replicas)
    with RunCheckpoints(Path(workdir) / "checkpoints") as run.checkpoints:
        yield run


class Run:
    """A run in progress: where it stands, and what it does next."""

    checkpoints: RunCheckpoints  # set by `open_run`

    def __init__(self, config: ConfigDict, data: Data, replicas: Replicas):
        self.config, self.data = config, data
        self.plan: EpochPlan | None = None
        self.position: dict[str, Any] = {}
        self._replicas = replicas
        model = make_model(config.model, len(data.vocabulary), AXIS)
        self._method = make_method(model, config)
        self._reference = reference_of(config, data.dev, self._method.losses)
        self.health = Health(self._reference)
        self._scorer = Scorer(model, replicas, config.evaluation.batch_size)
        sample = next(self.stream(EpochPlan({"sample": np.arange(len(data.train))}), 0).iterate())
        state = self._method.init(jax.random.key(config.seed), sample["sample"])
        self._abstract = jax.eval_shape(lambda: state)
        self._state = replicas.replicate(state)
        self._train_step = replicas.map(self._method.step, donate=True)
        self._mapped = functools.cache(replicas.map)  # one compilation per scoring function

    @property
    def step(self) -> int:
        return int(self._replicas.first(self._state.step))

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
        clipped = sum(len(tokens) > max_words for tokens in train.tokens)
        sizes = ", ".join(
            f"{split.split} {len(split.images)} images / {len(split)} captions"
            for split in self.data.splits
        )
        return (
            f"{self.title}\n{sizes}; {clipped} training captions clipped at {max_words} tokens; "
            f"{len(self._replicas)} device(s)"
        )

    def restore(self) -> dict | None:
        """Continues from the newest checkpoint, if there is one: the place in the run, or None."""
        resumed = self.checkpoints.restore_latest(self._abstract)
        if resumed is None:
            return None
        self._state = self._replicas.replicate(resumed.state)
        self.health = Health(self._reference, resumed.position["health"])
        if resumed.plan:
            self.plan = EpochPlan(dict(resumed.plan), resumed.position["report"])
        return resumed.position

    def adopt(self, variables: dict, cost: dict | None) -> dict[str, float]:
        """Takes over a model that was trained elsewhere; training goes on after the warm-up.

        Optimisers start afresh. The model is validated and saved as the newest and the best one.

        Args:
          variables: "params" and "batch_stats".
          cost: parameters of L2RM's learned cost; None keeps the initial ones.

        Returns:
          The validation recalls.
        """
        state = self._replicas.first(self._state).replace(**variables)
        if cost is not None:
            state = state.replace(own={**state.own, "cost": cost})
        self._state = self._replicas.replicate(state)
        row = self._validate()
        self._clock = time.monotonic()
        self.position = {"epoch": self.config.train.warmup_epochs, "best_rsum": row["rsum"]}
        self.checkpoints.save_best(self.step, self._replicas.first(self._state), row)
        self._save(self.step)
        return row

    def fit(
        self, log: RunLog, position: dict, on_epoch: Callable[["Run", int], None] | None = None
    ) -> None:
        """All epochs from `position` on."""
        self.position = position
        self._clock = time.monotonic() - position["seconds"]
        total = self.config.train.warmup_epochs + self.config.train.epochs
        for epoch in range(position["epoch"], total):
            epochs = np.full_like(self._state.epoch, epoch)
            self._state = self._state.replace(epoch=epochs)
            if self.plan is None:
                self.plan = self._method.plan(self.score_pairs(epoch), self.data.train, epoch)
                for warning in self.health.plan(epoch, self.plan.streams, self.plan.warnings):
                    # Of the epoch's first step: a resumed run that plans again warns again.
                    log.warn(self.step + 1, **warning)
            means = self._train_epoch(log, epoch, total)
            row = self._validate()
            if on_epoch is not None:
                on_epoch(self, epoch + 1)
            self._finish_epoch(log, epoch, {**means, **self.plan.report, **row})

    def _validate(self) -> dict[str, float]:
        dev = self.data.dev
        return recalls(self._similarities(dev), dev.captions_per_image)

    def restore_best(self) -> None:
        """Takes the best model so far for what follows."""
        best = self.checkpoints.restore_best(self._abstract)
        self._state = self._replicas.replicate(best)

    def test_similarities(self) -> np.ndarray:
        """Similarities of the test split under the best model so far."""
        self.restore_best()
        return self._similarities(self.data.test)

    def _similarities(self, split: PairDataset) -> np.ndarray:
        sims = self._scorer.similarities(_variables(self._state), split)
        epoch = int(self._replicas.first(self._state.epoch)) + 1
        require_finite({f"similarities of {split.split}": sims}, self.step, epoch)
        return sims

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
        )

    def score_pairs(self, epoch: int) -> Callable:
        """The function that a method's plan calls: every training pair scored exactly once.

        `score_pairs(epoch)(score)` maps `score(state, batch) -> [B, ...]`, or a tree of such
        arrays, over all pairs, in batches shuffled by (seed, epoch), and returns the values in the
        order of the pairs.
        """

        def score_pairs(score: Callable) -> Any:
            total = len(self.data.train)
            values = None
            batches = scoring_batches(
                self.data.train,
                batch_size=self.config.train.batch_size,
                seed=self.config.seed,
                epoch=epoch,
                max_words=self.config.data.max_words,
            )
            with progress_bar(total, f"epoch {epoch + 1}: scoring") as bar:
                for batch, valid in batches:
                    found = jax.tree.map(np.asarray, self.apply(score, batch))
                    if values is None:
                        values = jax.tree.map(functools.partial(_rows_like, total), found)
                    for all_of, these in zip(*map(jax.tree.leaves, (values, found)), strict=True):
                        all_of[batch.pair_index[:valid]] = these[:valid]
                    bar.update(valid)
            for leaf in jax.tree.leaves(values):
                require_finite({"scores of the training pairs": leaf}, self.step, epoch + 1)
            return values

        return score_pairs

    def apply(self, function: Callable, batch: Batch) -> Any:
        """`function(state, batch)` of a global batch, on all devices; the state stays as it is."""
        values = self._mapped(function)(self._state, self._replicas.shard(batch))
        return self._replicas.first(values)

    def _train_epoch(self, log: RunLog, epoch: int, total: int) -> dict[str, float]:
        """One pass over the plan's first stream; returns the means of the step metrics."""
        train = self.config.train
        stream = self.stream(self.plan, epoch)
        done = self.position.get("step_in_epoch", 0)
        means = Means(self.position.get("sums", {}))
        step = self.step
        pairs = len(stream) * train.batch_size
        title = f"epoch {epoch + 1}/{total}"
        with progress_bar(pairs, title, initial=done * train.batch_size) as bar:
            for batch in stream.iterate(done):
                shards = {name: self._replicas.shard(b) for name, b in batch.items()}
                self._state, metrics = self._train_step(self._state, shards)
                means.add(self._replicas.first(metrics))
                step, done = step + 1, done + 1
                bar.update(train.batch_size)
                save = done % train.checkpoint_steps == 0 and done < len(stream)
                # A checkpoint closes the running means, so that a resumed run has the same.
                if save or done % train.log_steps == 0 or done == len(stream):
                    recent = means.flush()
                    for at, metrics in enumerate(recent, step - len(recent) + 1):
                        require_finite(metrics, at, epoch + 1)
                    values = average(recent)
                    log.write("step", step, epoch=epoch + 1, **values)
                    bar.set_postfix(loss=f"{values['loss']:.3f}")
                if save:
                    self._save(step, step_in_epoch=done, sums=means.sums)
        return means.means()

    def _finish_epoch(self, log: RunLog, epoch: int, report: dict[str, float]) -> None:
        step, rsum = self.step, report["rsum"]
        best = max(rsum, self.position["best_rsum"])
        seconds = time.monotonic() - self._clock
        log.epoch(step, epoch=epoch + 1, **report, best_rsum=best, seconds=seconds)
        for warning in self.health.epoch(epoch, next(iter(self.plan.streams)), report):
            log.warn(step, **warning)
        if rsum > self.position["best_rsum"]:
            state = self._replicas.first(self._state)
            self.checkpoints.save_best(step, state, {"rsum": rsum})
        self.plan = None
        self.position = {"epoch": epoch + 1, "best_rsum": best}
        self._save(step)

    def _save(self, step: int, **within_epoch: Any) -> None:
        plan = self.plan or EpochPlan({})
        self.position |= {"seconds": time.monotonic() - self._clock, **within_epoch}
        position = {**self.position, "report": plan.report, "health": self.health.history}
        self.checkpoints.save(step, self._replicas.first(self._state), plan.streams, position)


def _rows_like(rows: int, x: np.ndarray) -> np.ndarray:
    """An array to be filled, of so many rows like those of x."""
    return np.empty((rows, *x.shape[1:]), x.dtype)


def _variables(state: Any) -> dict:
    return {"params": state.params, "batch_stats": state.batch_stats}
