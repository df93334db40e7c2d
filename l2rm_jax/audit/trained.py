"""The trained scorer: pairs are judged by runs of a method and a head that have not seen them.

The runs lie in a directory of the audit and are like the runs of `split.detector`, but for their
folds, which are those of the audit. An audit that was stopped goes on with them.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int
from ml_collections import ConfigDict

from l2rm_jax.audit.canonical import Order
from l2rm_jax.audit.inputs import Inputs, Settings
from l2rm_jax.audit.scorers import Scorer
from l2rm_jax.crossfit.information import Similarity
from l2rm_jax.data.files import replace_array
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, StoppedError, named_errors
from l2rm_jax.methods import METHODS
from l2rm_jax.models import HEADS
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.detector import (
    detectors,
    fold_config,
    fold_run,
    fold_similarity,
    open_workdir,
)
from l2rm_jax.run.inputs import check_settings, load_run_data
from l2rm_jax.run.judgement import LINEAR
from l2rm_jax.train import train

FOLD_FILE = "folds.npy"


def check_scorer(config: ConfigDict, settings: Settings) -> None:
    """Check the scorer, and the config of its runs if it is trained.

    Raises:
      ConfigError: an unknown scorer, or fields that do not fit its runs.
    """
    if settings.scorer == LINEAR:
        return
    if settings.scorer not in detectors():
        raise ConfigError(
            f"config.audit.scorer: {settings.scorer!r}, expected linear, or METHOD-HEAD with a "
            f"method of {', '.join(METHODS)} and a head of {', '.join(HEADS)}"
        )
    with named_errors(f"audit.scorer={settings.scorer}"):
        check_settings(fold_config(scorer_config(config, settings), fold=0))


def scorer_config(config: ConfigDict, settings: Settings, fold_file: str = "") -> ConfigDict:
    """The config whose detector is the trained scorer; nothing is filtered."""
    changes = {
        "seed": settings.seed,
        "split.by": "loss",
        "split.detector": settings.scorer,
        "split.every": 0,
        "split.folds": settings.folds,
        "split.fold_file": fold_file,
        "split.held_out": -1,
        "data.filter": "none",
        "data.filter_scores": "",
        "data.filter_value": 0.0,
        "train.draw": "even",
    }
    return with_changes(config, changes)


@contextlib.contextmanager
def trained_scorer(
    inputs: Inputs,
    settings: Settings,
    order: Order,
    image_fold: Int[np.ndarray, " images"],
    workdir: Path,
) -> Iterator[Scorer]:
    """The scorer whose models are runs; its rows and `image_fold` are in the order `order`.

    Its similarities count in temperatures, as the runs differ in theirs.

    Other arguments and errors as `trained_models`.
    """
    # Placeholders are judged by no model; they are in fold 0.
    fold_of_row = np.zeros(inputs.images.shape[0], image_fold.dtype)
    fold_of_row[order.images] = image_fold
    with trained_models(inputs.config, settings, fold_of_row, workdir) as model_of_rows:

        def model_of(fold: int, pairs: np.ndarray) -> tuple[Similarity, float]:
            compare, temperature = model_of_rows(fold, np.sort(order.pairs[pairs]))

            def similarity(images: np.ndarray, captions: np.ndarray) -> ArrayLike:
                return compare(order.images[images], order.pairs[captions])

            return similarity, temperature

        yield Scorer(settings.scorer, model_of, unit=1.0)


@contextlib.contextmanager
def trained_models(
    config: ConfigDict, settings: Settings, image_fold: Int[np.ndarray, " images"], workdir: Path
) -> Iterator[Callable[[int, Int[np.ndarray, " n"]], tuple[Similarity, float]]]:
    """The model of each fold, trained when it is first asked for.

    Args:
      config: config of the data, the sizes of the model and the length of the runs
        (`Inputs.config`).
      settings: the audit's.
      image_fold: fold of each image, in the order of the data.
      workdir: directory of the runs. Those that are finished there are not trained again.

    Yields:
      A function. Called with a fold and the rows of its pairs, in the order of the data and
      ascending, it returns a similarity of rows of their images and captions, which holds until the
      next call; and its temperature.

    Raises:
      StoppedError: a signal came; the same audit goes on where it stopped.
      L2RMError: the data or the config do not fit the runs, or a run fails.
    """
    fold_file = workdir / FOLD_FILE
    replace_array(fold_file, image_fold)
    own = scorer_config(config, settings, str(fold_file))
    data, replicas = load_run_data(own, workdir), Replicas()
    with open_workdir(own, data, workdir), contextlib.ExitStack() as opened:

        def model_of(fold: int, pairs: np.ndarray) -> tuple[Similarity, float]:
            opened.close()
            runs = {"epoch": 0, "workdir": workdir, "replicas": replicas, "train": train}
            try:
                run = opened.enter_context(fold_run(own, data, fold, **runs))
            except StoppedError as error:
                message = f"stopped at {error.place}. Continue: the same command again"
                raise StoppedError(message, error.signal, error.place) from None
            return fold_similarity(run, data.train, pairs)

        yield model_of
