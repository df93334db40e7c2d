"""The trained scorer: pairs are judged by runs of a method and a head that have not seen them.

The runs lie in a directory of the audit and are like the runs of `split.detector`: an audit that
was stopped goes on with them. Folds are hashes of image rows, so near duplicates of an image may be
trained on.
"""

from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.audit.inputs import Settings
from l2rm_jax.crossfit import Evidence
from l2rm_jax.data.loading import load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, StoppedError, named_errors
from l2rm_jax.methods import METHODS
from l2rm_jax.models import HEADS
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.detector import detectors, evidence_by_runs, fold_config
from l2rm_jax.run.inputs import check_settings
from l2rm_jax.run.judgement import LINEAR
from l2rm_jax.train import train


def check_scorer(config: ConfigDict, settings: Settings) -> None:
    """Check the scorer, and the config of its runs if it is trained.

    Raises:
      ConfigError: an unknown scorer, no folds for a trained one, or fields that do not fit it.
    """
    if settings.scorer == LINEAR:
        return
    if settings.scorer not in detectors():
        raise ConfigError(
            f"config.audit.scorer: {settings.scorer!r}, expected linear, or METHOD-HEAD with a "
            f"method of {', '.join(METHODS)} and a head of {', '.join(HEADS)}"
        )
    if not settings.folds:
        raise ConfigError(
            f"config.audit.folds: 0, expected 3 to 100 with audit.scorer={settings.scorer}"
        )
    with named_errors(f"audit.scorer={settings.scorer}"):
        check_settings(fold_config(scorer_config(config, settings), fold=0))


def scorer_config(config: ConfigDict, settings: Settings) -> ConfigDict:
    """The config whose detector is the trained scorer; nothing is filtered."""
    changes = {
        "seed": settings.seed,
        "split.by": "loss",
        "split.detector": settings.scorer,
        "split.every": 0,
        "split.folds": settings.folds,
        "split.held_out": -1,
        "data.filter": "none",
        "data.filter_scores": "",
        "data.filter_value": 0.0,
        "train.draw": "even",
    }
    return with_changes(config, changes)


def trained_evidence(config: ConfigDict, settings: Settings, workdir: Path) -> Evidence:
    """Train a run for each fold, and return what it says of the pairs that it has not seen.

    Args:
      config: config of the data, the sizes of the model and the length of the runs
        (`Inputs.config`).
      settings: the audit's; the folds are `run.judgement.image_folds` of `settings.folds`.
      workdir: directory of the runs. Those that are finished there are not trained again.

    Raises:
      StoppedError: a signal came; the same audit goes on where it stopped.
      L2RMError: the data or the config do not fit the runs, or a run fails.
    """
    own = scorer_config(config, settings)
    data = load_data(own.data, own.mismatch, workdir=workdir)
    try:
        return evidence_by_runs(
            own, data, epoch=0, workdir=workdir, replicas=Replicas(), train=train
        )
    except StoppedError as error:
        message = f"stopped at {error.place}. Continue: the same command again"
        raise StoppedError(message, error.signal, error.place) from None
