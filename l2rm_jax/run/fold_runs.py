"""The names and configs of the runs by which a method and a head judge the pairs of a run.

The run of fold k lies in `judgement/fold-k` of the work directory and is like any other: it can be
stopped, continued and evaluated. It is a run with `data.filter=score`, whose scores leave out the
fold, and those pairs of the others that linear models call mismatched.
"""

from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.errors import ConfigError
from l2rm_jax.judging import DETECTORS
from l2rm_jax.judging.detectors import LINEAR
from l2rm_jax.methods import METHODS, Method
from l2rm_jax.models import HEADS
from l2rm_jax.run.config_file import with_changes

FOLD_DIRECTORY = "judgement/fold-{}"  # of the work directory
SCORES_FILE = "scores.npy"  # in that directory: 1 less the posterior, 0 in the fold


def trained_detectors() -> dict[str, tuple[str, str]]:
    """Method and head of each name METHOD-HEAD."""
    return {f"{method}-{head}": (method, head) for method in METHODS for head in HEADS}


def is_trained(config: ConfigDict) -> bool:
    """Whether the detector is trained (a method and a head), not a closed form."""
    return config.judgement.detector in trained_detectors()


def check_detector(config: ConfigDict, method: Method, is_used: bool) -> None:
    """Check the fields of the judgement against each other and what uses it.

    Args:
      config: config of a run, or of data that are audited.
      method: its method.
      is_used: whether anything uses the judgement.

    Raises:
      ConfigError: one message for each field that does not fit.
    """
    judgement, wrong = config.judgement, []
    name, every = judgement.detector, judgement.every
    if name not in DETECTORS and not is_trained(config):
        wrong.append(
            f"judgement.detector: found {name!r}, expected one of {', '.join(DETECTORS)}, or "
            f"METHOD-HEAD with a method of {', '.join(METHODS)} and a head of {', '.join(HEADS)}"
        )
    elif name != LINEAR and not is_used:
        wrong.append(
            f"judgement.detector: found {name!r}, expected linear, as nothing uses a judgement; "
            "set split.by=judgement, data.filter=judgement, train.draw=judgement or "
            "train.weight=judgement"
        )
    elif not is_trained(config):
        if every:
            wrong.append(f"judgement.every: found {every}, expected 0, as {name} judges once")
    else:
        if config.data.filter not in ("none", "judgement"):
            wrong.append(
                f"data.filter: found {config.data.filter!r}, expected none or judgement, as "
                f"judgement.detector={name} filters the pairs of its runs itself"
            )
        if every and method.plan is None:
            wrong.append(
                f"judgement.every: found {every}, expected 0, as {config.method} is fitted once"
            )
        if every and config.data.filter == "judgement":
            wrong.append(
                f"judgement.every: found {every}, expected 0 with data.filter=judgement, which "
                "drops pairs once, before the first epoch"
            )
    if judgement.path and not is_used:
        wrong.append(
            f"judgement.path: found {judgement.path!r}, expected none, as nothing uses a judgement"
        )
    if wrong:
        raise ConfigError(*wrong)


def fold_config(config: ConfigDict, workdir: str | Path, fold: int, epoch: int = 0) -> ConfigDict:
    """The config of the run that leaves out a fold.

    Args:
      config: config of the run whose pairs are judged by a method and a head.
      workdir: its work directory.
      fold: the fold.
      epoch: the epoch (counted from 0) before which it judges.
    """
    method, head = trained_detectors()[config.judgement.detector]
    epochs, every = config.train.epochs, config.judgement.every
    if every:
        epochs = max(0, epoch - config.train.warmup_epochs) + every
    changes = {
        "method": method,
        "model.head": head,
        "split.by": "loss",
        "judgement.detector": LINEAR,
        "judgement.every": 0,
        "judgement.path": "",
        "data.filter": "score",
        "data.scores": str(Path(workdir) / FOLD_DIRECTORY.format(fold) / SCORES_FILE),
        "data.filter_value": 1 - SUSPICIOUS,
        "train.draw": "even",
        "train.weight": "none",
        "model.start": "",
        "train.networks": 0,
        "train.epochs": epochs,
    }
    return with_changes(config, changes)


def judged_epoch(config: ConfigDict, epoch: int) -> int:
    """The epoch before which the judgement of an epoch was made; both are counted from 0."""
    every, past = config.judgement.every, epoch - config.train.warmup_epochs
    return epoch - past % every if every and past >= every else 0
