"""Check everything that an audit is given, and read its pairs."""

from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.audit.audit import Settings, check_column
from l2rm_jax.audit.certificate import check_size
from l2rm_jax.audit.inputs import read_training_pairs
from l2rm_jax.audit.review import read_decisions
from l2rm_jax.data.layouts.shards import open_shard_pairs
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.record import is_undivided
from l2rm_jax.data.shards import are_shards
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.data.word_report import WordReport
from l2rm_jax.errors import ConfigError, Problems
from l2rm_jax.jobs import SINGLE, Job, Place
from l2rm_jax.methods import make_method
from l2rm_jax.models import make_model
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.fold_runs import check_detector, fold_config, is_trained
from l2rm_jax.run.inputs import check_fields, check_settings, with_valid_fields

ALL_PAIRS = {  # for the runs that judge: no pair is filtered or drawn
    "split.by": "loss",
    "judgement.every": 0,
    "judgement.path": "",
    "data.filter": "none",
    "data.scores": "",
    "data.filter_value": 0.0,
    "train.draw": "even",
}


def read_checked(
    config: ConfigDict, workdir: str | Path | None, settings: Settings, place: Place, job: Job
) -> tuple[Pairs, TrainPairs | None, WordReport | None]:
    """Read the pairs; report all problems with fields and files in one message.

    Raises:
      L2RMError: lists every problem.
    """
    problems = Problems()
    problems.attempt(place.check)
    problems.attempt(check_fields, config)
    if not problems.messages:
        problems.attempt(check_detector_of_audit, config)
        problems.attempt(_check_place, config, place, workdir=workdir)
        problems.attempt(check_size, settings.decide, settings.certify)
    valid = with_valid_fields(config)  # wrong fields must not add errors about the data
    if workdir is None and config.data.path and are_shards(config.data.path):
        problems.attempt(_check_shards, config)
        pairs = problems.attempt(open_shard_pairs, config.data.path, job.work / "vectors")
        found = pairs and (pairs, None, None)
    else:
        if workdir is None and is_trained(valid):
            problems.attempt(_check_validation, valid)
        found = problems.attempt(read_training_pairs, valid, workdir=workdir)
    if settings.review and found is not None:
        problems.attempt(read_decisions, settings.review, len(found[0]), found[0].fingerprint)
    if settings.by and found is not None:
        problems.attempt(check_column, found[0], settings.by)
    if len(problems.messages) > 1:
        problems.raise_list()
    problems.raise_all()
    return found


def _check_place(config: ConfigDict, place: Place, workdir: str | Path | None) -> None:
    if place.share != SINGLE and workdir is not None:
        raise ConfigError("--share cannot be combined with --workdir: one process audits a run")
    if is_trained(config) and place.share != SINGLE:
        raise ConfigError(
            f"--share={place.share} cannot be combined with judgement.detector="
            f"{config.judgement.detector}, whose runs train in one process; use a detector in "
            "closed form"
        )
    if is_trained(config) and place.is_ray:
        raise ConfigError(
            f"--executor={place.executor} cannot be combined with judgement.detector="
            f"{config.judgement.detector}, whose runs train in this process; use local, or a "
            "detector in closed form"
        )


def _check_shards(config: ConfigDict) -> None:
    """Check that no setting requires training data."""
    if is_trained(config):
        raise ConfigError(
            f"judgement.detector={config.judgement.detector!r}: found vectors in shards, on which "
            "no run can train; expected a detector in closed form",
            hint="--config.judgement.detector=linear",
        )
    if config.mismatch.rate:
        raise ConfigError(
            f"mismatch.rate={config.mismatch.rate}: found vectors in shards, expected 0"
        )


def _check_validation(config: ConfigDict) -> None:
    """Check that the runs of a trained detector have a validation split that is not judged."""
    if is_undivided(config.data.path):
        raise ConfigError(
            f"judgement.detector={config.judgement.detector!r}: found no split dev in "
            f"{config.data.path}, which its runs require; import the data with --split, or use a "
            "detector in closed form",
            hint="--config.judgement.detector=linear",
        )


def check_detector_of_audit(config: ConfigDict) -> None:
    """Check the detector, and the config of its runs if it is trained.

    Raises:
      ConfigError: lists every invalid field.
    """
    own = with_changes(config, ALL_PAIRS)
    method = make_method(make_model(own, vocabulary_size=1), own)
    check_detector(own, method, is_used=True)
    if is_trained(own):
        check_settings(fold_config(own, "", fold=0))
