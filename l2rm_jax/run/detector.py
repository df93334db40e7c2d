"""The trained detector of cross-fitting: a fold is judged by a run that has never seen its pairs.

The run of fold k lies in `crossfit/fold-k` of the work directory and is like any other: it can be
stopped, continued and evaluated. It trains on those pairs of the other folds that the linear
detector, cross-fitted among them, calls matched.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax import console
from l2rm_jax.crossfit import (
    REFERENCES,
    Evidence,
    Judgement,
    best_temperature,
    check_folds,
    fold_evidence,
    judge,
    product_similarity,
)
from l2rm_jax.crossfit.information import Similarity
from l2rm_jax.data.loading import save_vocabulary_and_index
from l2rm_jax.data.pairs import Data, PairDataset
from l2rm_jax.devices.hosts import is_primary, on_any_host
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, named_errors
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.methods import METHODS, Method
from l2rm_jax.models import HEADS
from l2rm_jax.run.config_file import check_workdir, with_changes, write_config
from l2rm_jax.run.judgement import LINEAR, asked_level, image_folds, uses_crossfit
from l2rm_jax.run.lock import lock_workdir
from l2rm_jax.run.opening import open_run
from l2rm_jax.run.results import is_finished
from l2rm_jax.run.run import Run

FOLD_DIRECTORY = "crossfit/fold-{}"  # of the work directory
POSTERIOR = 0.5  # the runs of the folds train on the pairs above it


def is_trained(split: ConfigDict) -> bool:
    """Whether a method and a head judge, and not the linear detector."""
    return split.detector != LINEAR


def check_detector(config: ConfigDict, method: Method) -> None:
    """Check the fields of the detector against each other and the other uses of cross-fitting.

    Raises:
      ConfigError: one message for each field that does not fit.
    """
    split, wrong = config.split, []
    if not is_trained(split):
        if split.every:
            wrong.append(
                f"split.every: {split.every}, expected 0, as split.detector=linear judges once"
            )
    elif split.detector not in detectors():
        wrong.append(
            f"split.detector: {split.detector!r}, expected linear, or METHOD-HEAD with a method of "
            f"{', '.join(METHODS)} and a head of {', '.join(HEADS)}"
        )
    elif not uses_crossfit(config):
        wrong.append(
            f"split.detector: {split.detector!r}, expected linear, as nothing uses cross-fitting; "
            "set split.by=crossfit, data.filter=crossfit or train.draw=posterior"
        )
    else:
        if split.held_out >= 0:
            wrong.append(f"split.held_out: {split.held_out}, expected -1 with {split.detector}")
        if config.data.filter not in ("none", "crossfit"):
            wrong.append(
                f"data.filter: {config.data.filter!r}, expected none or crossfit, as "
                f"split.detector={split.detector} filters the pairs of its runs itself"
            )
        if split.every and method.plan is None:
            wrong.append(
                f"split.every: {split.every}, expected 0, as {config.method} is fitted once"
            )
        if split.every and config.data.filter == "crossfit":
            wrong.append(
                f"split.every: {split.every}, expected 0 with data.filter=crossfit, which drops "
                "pairs once, before the first epoch"
            )
    if wrong:
        raise ConfigError(*wrong)


def detectors() -> dict[str, tuple[str, str]]:
    """Method and head of each name METHOD-HEAD."""
    return {f"{method}-{head}": (method, head) for method in METHODS for head in HEADS}


def fold_config(config: ConfigDict, fold: int, epoch: int = 0) -> ConfigDict:
    """The config of the run that leaves out a fold.

    Args:
      config: config of the run whose pairs are judged by a trained detector.
      fold: the fold.
      epoch: the epoch (counted from 0) before which it judges.
    """
    method, head = detectors()[config.split.detector]
    epochs, every = config.train.epochs, config.split.every
    if every:
        epochs = max(0, epoch - config.train.warmup_epochs) + every
    changes = {
        "method": method,
        "model.head": head,
        "split.by": "loss",
        "split.detector": LINEAR,
        "split.every": 0,
        "split.held_out": fold,
        "data.filter": "crossfit",
        "data.filter_value": POSTERIOR,
        "train.draw": "even",
        "train.networks": 0,
        "train.epochs": epochs,
    }
    return with_changes(config, changes)


def judged_epoch(config: ConfigDict, epoch: int) -> int:
    """The epoch before which the judgement of an epoch was made; both are counted from 0."""
    every, past = config.split.every, epoch - config.train.warmup_epochs
    return epoch - past % every if every and past >= every else 0


def judge_by_runs(
    config: ConfigDict,
    data: Data,
    epoch: int,
    *,
    workdir: str | Path,
    replicas: Replicas,
    train: Callable[[ConfigDict, Path, Replicas], object],
) -> Judgement:
    """Judge every pair by the run that leaves out its fold; every host must call this.

    Runs that are finished are not trained again; one that was stopped continues. Before the first
    epoch, nothing else may use the work directory; later, the caller holds its lock.

    Args:
      config: config of the run whose pairs are judged.
      data: its data.
      epoch: the epoch (counted from 0) before which the pairs are judged.
      workdir: its work directory.
      replicas: devices to train on.
      train: trains a run in a directory, or continues it (`l2rm_jax.train.train`).

    Raises:
      DataError: a fold has fewer than two images, or the other folds fewer pairs than a batch.
      StoppedError: a signal came; its place names the fold.
      L2RMError: as `train`; the message names the fold.
    """
    pairs, workdir = data.train, Path(workdir)
    folds, groups = image_folds(config.split, pairs), np.arange(len(pairs.images))
    check_folds(pairs.stored_image, folds, groups)
    inputs = {"config": config.to_dict(), "stored_image": pairs.stored_image}
    replicas.require_same_on_hosts(inputs, "config and training pairs")
    runs = {"epoch": epoch, "workdir": workdir, "replicas": replicas, "train": train}
    pair_fold, parts = folds[pairs.stored_image], []
    with open_workdir(config, data, workdir) if epoch == 0 else contextlib.nullcontext():
        for fold in range(int(folds.max()) + 1):
            with fold_run(config, data, fold, **runs) as run:
                part = np.flatnonzero(pair_fold == fold)
                similarity, temperature = fold_similarity(run, pairs, part)
                parts.append(
                    fold_evidence(
                        similarity, pairs.stored_image, part, groups, [0, fold], temperature
                    )
                )
    order = np.argsort(np.argsort(pair_fold, kind="stable"), kind="stable")
    evidence = Evidence(*(np.concatenate(values)[order] for values in zip(*parts, strict=True)))
    return judge(evidence, pairs.stored_image, asked_level(config.split))


@contextlib.contextmanager
def fold_run(
    config: ConfigDict,
    data: Data,
    fold: int,
    *,
    epoch: int,
    workdir: Path,
    replicas: Replicas,
    train: Callable[[ConfigDict, Path, Replicas], object],
) -> Iterator[Run]:
    """Open the best model of the run that leaves out a fold; it is trained if it is not finished.

    Arguments and errors as `judge_by_runs`.
    """
    title = f"cross-fitting, fold {fold + 1} of {config.split.folds}"
    own, directory = fold_config(config, fold, epoch), workdir / FOLD_DIRECTORY.format(fold)
    with named_errors(title):
        if on_any_host(not is_finished(directory, own)):
            if is_primary():
                console.say(f"\n{title}: {config.split.detector} on the other folds")
                save_vocabulary_and_index(data, directory)
            train(own, directory, replicas)
            gc.collect()  # frees the run's compiled programs
        with open_run(own, data, directory, replicas) as run:
            run.restore_best()
            yield run


@contextlib.contextmanager
def open_workdir(config: ConfigDict, data: Data, workdir: Path) -> Iterator[None]:
    """Make the work directory of a run that has not begun, so that it can be continued by name."""
    if not is_primary():
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    with lock_workdir(workdir):
        check_workdir(workdir, config)  # again, as another run may have used it meanwhile
        write_config(workdir, config)
        save_vocabulary_and_index(data, workdir)
        yield


def fold_similarity(run: Run, pairs: PairDataset, part: np.ndarray) -> tuple[Similarity, float]:
    """How a run compares images and captions of some pairs, while it is open; and a temperature.

    Args:
      run: the run that has not seen these pairs.
      pairs: all pairs.
      part: rows of these pairs, ascending.

    Returns:
      The similarity, a function of rows of images and captions of these pairs; and the temperature
      that is best for dev.
    """
    dev = run.data.dev.head(min(len(run.data.dev.images), REFERENCES))
    temperature = best_temperature(run.score(dev), dev.caption_image)
    if run.model.is_product:
        images = np.unique(pairs.stored_image[part])
        codes = run.score(pairs.cross(images, part), Scorer.embeddings)
        return product_similarity(images, codes[0], part, codes[1]), temperature

    def similarity(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        return run.score(pairs.cross(images, captions))

    return similarity, temperature
