"""The trained detector: a fold is judged by a run that has never seen its pairs (`fold_runs`)."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from l2rm_jax import console
from l2rm_jax.data.files import replace_array
from l2rm_jax.data.loading import save_vocabulary_and_index
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.devices.hosts import is_primary, on_any_host, wait_for_file
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import named_errors
from l2rm_jax.evaluation.scoring import Scorer as RunScorer
from l2rm_jax.judging import Detector, FoldTask, Model, Scorer, judge_pairs, make_detector
from l2rm_jax.judging.detectors import best_temperature
from l2rm_jax.judging.folds import REFERENCES
from l2rm_jax.judging.log_odds import Similarity, product_similarity
from l2rm_jax.run.fold_runs import FOLD_DIRECTORY, SCORES_FILE, fold_config, is_trained
from l2rm_jax.run.initialise import open_run, open_workdir
from l2rm_jax.run.results import is_finished
from l2rm_jax.run.run import Run


@contextlib.contextmanager
def open_detector(
    config: ConfigDict,
    data: Data,
    epoch: int,
    *,
    workdir: str | Path,
    replicas: Replicas,
    train: Callable[[ConfigDict, Path, Replicas], object],
) -> Iterator[Detector]:
    """Open the detector that `config.judgement.detector` names; a trained one needs the context.

    Runs that are finished are not trained again; one that was stopped continues. Every host must
    call this. Before the first epoch, nothing else may use the work directory; later, the caller
    holds its lock.

    Args:
      config: config of the run whose pairs are judged.
      data: its data.
      epoch: the epoch (counted from 0) before which the pairs are judged.
      workdir: its work directory.
      replicas: devices to train on.
      train: trains a run in a directory, or continues it (`l2rm_jax.train.train`).

    Raises:
      StoppedError: a signal came, in the `with` block; its place names the fold.
      L2RMError: as `train`, there; the message names the fold.
    """
    if not is_trained(config):
        yield make_detector(config)
        return
    workdir = Path(workdir)
    inputs = {"config": config.to_dict(), "stored_image": data.train.stored_image}
    replicas.require_same_on_hosts(inputs, "config and training pairs")
    with contextlib.ExitStack() as opened:
        if epoch == 0:
            opened.enter_context(open_workdir(config, data, workdir))
        run_of_fold = opened.enter_context(contextlib.ExitStack())

        def detect(task: FoldTask) -> Scorer:
            def model_of(fold: int) -> Model:
                run_of_fold.close()
                if epoch == 0:
                    _keep_scores(config, data.train, task, fold, workdir)
                runs = {"epoch": epoch, "workdir": workdir, "replicas": replicas, "train": train}
                run = run_of_fold.enter_context(fold_run(config, data, fold, **runs))
                own = np.sort(task.drawn[fold].pairs)
                images = np.unique(task.images[task.folds.image_of[own]])
                similarity, temperature = fold_similarity(run, data.train, images, task.rows[own])
                return Model(
                    lambda images, captions: similarity(task.images[images], task.rows[captions]),
                    temperature,
                )

            return Scorer(config.judgement.detector, model_of)

        yield detect


def _keep_scores(
    config: ConfigDict, pairs: TrainPairs, task: FoldTask, fold: int, workdir: Path
) -> None:
    """Write the scores of the pairs that a fold's run trains on: the other folds, judged alone."""
    path = workdir / FOLD_DIRECTORY.format(fold) / SCORES_FILE
    if is_primary() and not path.exists():
        outside = task.rows[task.folds.of_pair != fold]
        folds, seed = config.judgement.folds, config.seed + 1
        judged = judge_pairs(pairs.take(outside).to_judge, folds=folds, seed=seed)
        scores: Float[np.ndarray, " pairs"] = np.zeros(len(pairs))
        # Where the linear models cannot tell, nothing is left out.
        scores[outside] = judged.matched if judged.is_rankable else 1
        replace_array(path, scores)
    wait_for_file(path)


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

    Arguments and errors as `open_detector`.
    """
    title = f"judging, fold {fold + 1} of {config.judgement.folds}"
    own = fold_config(config, workdir, fold, epoch)
    directory = workdir / FOLD_DIRECTORY.format(fold)
    with named_errors(title):
        if on_any_host(not is_finished(directory, own)):
            if is_primary():
                console.say(f"\n{title}: {config.judgement.detector} on the other folds")
                save_vocabulary_and_index(data, directory)
            train(own, directory, replicas)
            gc.collect()  # frees the run's compiled programs
        with open_run(own, data, directory, replicas) as run:
            run.restore_best()
            yield run


def fold_similarity(
    run: Run,
    pairs: TrainPairs,
    images: Int[np.ndarray, " m"],
    captions: Int[np.ndarray, " n"],
) -> tuple[Similarity, float]:
    """Make the function by which an open run compares images and captions, and its temperature.

    Args:
      run: the run that has not seen these pairs.
      pairs: all pairs.
      images: rows of the images to compare, ascending.
      captions: likewise of the captions.

    Returns:
      The similarity, a function of rows of images and captions of these pairs; and the best
      temperature for dev.
    """
    dev = run.data.dev.head(min(len(run.data.dev.images), REFERENCES))
    temperature = best_temperature(run.score(dev), dev.caption_image)
    if run.model.is_product:
        codes = run.score(pairs.cross(images, captions), RunScorer.embeddings)
        return product_similarity(images, codes[0], captions, codes[1]), temperature

    def similarity(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        return run.score(pairs.cross(images, captions))

    return similarity, temperature
