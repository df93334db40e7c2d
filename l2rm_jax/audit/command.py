"""Run `l2rm audit`: check, read, judge, write; resume an audit that was stopped."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.audit.audit import Audit, Settings
from l2rm_jax.audit.checked_inputs import ALL_PAIRS, read_checked
from l2rm_jax.audit.lines import find_lines
from l2rm_jax.audit.misaligned import (
    affected_share,
    judge_repaired,
    read_repair,
    search_once,
    search_pairs,
    within_findings,
)
from l2rm_jax.audit.next_commands import review_command
from l2rm_jax.audit.outputs import write_files
from l2rm_jax.audit.review import read_decisions
from l2rm_jax.audit.run_columns import read_of_run
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.shards import are_shards
from l2rm_jax.data.train_pairs import TrainPairs, token_counts
from l2rm_jax.data.vectors import PairRows
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, StoppedError
from l2rm_jax.jobs import Job, Place, Stored
from l2rm_jax.jobs.files import check_new
from l2rm_jax.joins import Misaligned
from l2rm_jax.judging import (
    Judgement,
    KeptJudge,
    is_of_pairs,
    judge_pairs,
    make_detector,
    read_judgement,
    rows_for,
)
from l2rm_jax.judging.detectors import LINEAR, linear
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.detector import open_detector
from l2rm_jax.run.fold_runs import is_trained
from l2rm_jax.run.initialise import read_trained_config
from l2rm_jax.run.inputs import load_run_data
from l2rm_jax.run.judgement import given_judgement, last_judgement
from l2rm_jax.run.load_trained import find_checkpoint
from l2rm_jax.run.pretrained import with_own_weights
from l2rm_jax.train import train as train_model
from l2rm_jax.version import __version__

_log = logging.getLogger(__name__)

TOO_MANY, CANNOT_TELL = 3, 4  # exit statuses
DATA = "data"  # directory of data that the audit has imported
_JUDGED = "judged"  # directory of the parts of the judgement
_HERE = Place()
_NO_LIMIT = 1.0  # of `max_share`


def audit_directory(
    config: ConfigDict,
    out: str | Path,
    place: Place = _HERE,
    name: str = "",
    flags: Sequence[str] | None = None,
    judge: KeptJudge | None = None,
) -> Audit | None:
    """Audit the training pairs that a config describes, and write a directory of results.

    Work in progress is stored in `OUT.partial`; the same command resumes it.

    Args:
      config: config of the data, with the sections `audit` and `judgement`.
      out: the new directory.
      place: executor of the parts. Work may be resumed with another one, but only with the same
        number of shares.
      name: name of the data in the report; "": their directory.
      flags: flags of a command line that name the pairs and their config, for the next commands;
        None without a command line.
      judge: judge that an audit of trusted pairs has kept; None: models are fitted to these pairs.

    Returns:
      The audit; None if this process computes a share and another process writes the results.

    Raises:
      L2RMError: the input is invalid: one message with one problem per line; nothing was judged.
      ConfigError: the directory is complete already, or another audit of it is in progress.
    """
    return _audit(config, None, Path(out), place, name, flags, judge)


def audit_run(
    workdir: str | Path,
    out: str | Path,
    changes: Mapping[str, Any] = MappingProxyType({}),
    place: Place = _HERE,
    flags: Sequence[str] | None = None,
    judge: KeptJudge | None = None,
) -> Audit:
    """Audit the training pairs of a run; an existing judgement of the run is reused.

    Args:
      workdir: work directory of the run, which has finished an epoch.
      out: as `audit_directory`.
      changes: config keys with values that replace the run's own.
      place: as `audit_directory`.
      flags: as `audit_directory`.
      judge: as `audit_directory`; None: the run's own judgement, if it has one.

    Raises:
      L2RMError: as `audit_directory`.
    """
    config = with_own_weights(read_trained_config(workdir, changes, "audit"), workdir)
    if "judgement.path" not in changes:  # the run has its own copy
        config = with_changes(config, {"judgement.path": ""})
    find_checkpoint(workdir)  # fail early if there is none
    return _audit(config, workdir, Path(out), place, flags=flags, judge=judge)


def exit_status(audit: Audit) -> int:
    """Return 0, `TOO_MANY` above `max_share`, or `CANNOT_TELL` without a rate or certificate.

    The rate is of the pairs as stored, whatever a repair would put back. A certificate is missing
    if the whole review is decided and no set has passed.
    """
    most, found = audit.settings.max_share, audit.judgement
    limited, without_rate = most < _NO_LIMIT, bool(found.unreliable_reason)
    if limited and affected_share(audit.misaligned) > most:
        return TOO_MANY
    if limited and not without_rate and found.rate.low > most:
        return TOO_MANY
    without_certificate = audit.certificate is not None and not audit.certificate.pairs
    return CANNOT_TELL if (limited and without_rate) or without_certificate else 0


def _audit(
    config: ConfigDict,
    workdir: str | Path | None,
    out: Path,
    place: Place,
    name: str = "",
    flags: Sequence[str] | None = None,
    judge: KeptJudge | None = None,
) -> Audit | None:
    if judge is not None and config.judgement.path:
        raise ConfigError("--judge cannot be combined with judgement.path, a finished judgement")
    settings, job = Settings(**config.audit, seed=config.seed), Job(out, "audit", place.share)
    check_new(out, "directory")
    with job.locked():
        pairs, train, words = read_checked(config, workdir, settings, place, job)
        pairs = replace(pairs, name=name or pairs.name)
        given = _given(config, pairs)
        job.claim(_identity(pairs, train, config, place, judge))
        given = given or (_of_run(pairs, workdir) if judge is None else None)
        fits = Stored(job.work / "fits", share=job.share)
        work = _Work(config, job, place, judge, cache(partial(rows_for, pairs, judge, fits)))
        judgement = given or _judge(work, pairs, train)
        misaligned, repaired = _repair(work, pairs, train)
        if not job.is_mine_to_finish():
            return None
        judgement = within_findings(judgement, misaligned)
        job.clear(DATA)
        decisions = read_decisions(settings.review, len(judgement)) if settings.review else None
        of_run = None
        if workdir is not None:
            of_run = read_of_run(config, train, judgement, workdir)
        known = {"train": train, "config": config if train else None, "words": words}
        known["again"] = "" if flags is None else review_command(flags, out)
        known |= {"misaligned": misaligned, "repaired": repaired}
        audit = Audit(pairs, judgement, settings, decisions, of_run, **known)
        _log.info("writing the report, the table and the page")
        write_files(audit, job.partial)
        job.finish()
    return audit


def _given(config: ConfigDict, pairs: Pairs) -> Judgement | None:
    """Return the judgement of `judgement.path`; with a review, before any decisions."""
    path = config.judgement.path
    return given_judgement(path, pairs, is_decided=not config.audit.review) if path else None


def _of_run(pairs: Pairs, workdir: str | Path | None) -> Judgement | None:
    """Return the judgement of a run, if it judged these pairs; None if not."""
    if workdir is None or not (path := last_judgement(workdir)).exists():
        return None
    judgement = read_judgement(path)
    return judgement if is_of_pairs(judgement, pairs) else None


class _Work(NamedTuple):
    """Settings of the judging, and where it runs; `rows` computes the pairs' vectors once."""

    config: ConfigDict
    job: Job
    place: Place
    kept: KeptJudge | None
    rows: Callable[[], PairRows]


def _judge(work: _Work, pairs: Pairs, train: TrainPairs | None) -> Judgement | None:
    """Judge the pairs, by a kept judge, by a detector in closed form or by runs in `job.work`.

    The result is None in a share that does not write the results, here and below.
    """
    config, job = work.config, work.job
    if work.kept is not None or not is_trained(config):
        return _judge_in_closed_form(work, pairs, _JUDGED)
    own, runs = with_changes(config, ALL_PAIRS), job.work / "runs"
    where = {"workdir": runs, "replicas": Replicas(), "train": train_model}
    data = replace(load_run_data(own, runs), train=train)  # with vectors of its encoders
    name, stored = config.judgement.detector, Stored(job.work / _JUDGED)
    try:
        with open_detector(own, data, 0, **where) as detector:
            settings = {"rows": work.rows(), "executor": stored, **_settings(config)}
            return judge_pairs(pairs, detector, name=name, **settings)
    except StoppedError as error:
        message = f"stopped at {error.place}. Continue: the same command again"
        raise StoppedError(message, error.signal, error.place) from None


def _judge_in_closed_form(work: _Work, pairs: Pairs, folder: str) -> Judgement | None:
    """Judge pairs by a kept judge or in closed form, where linear models stand in for runs.

    The pairs may be repaired: their vectors are the same.
    """
    config, kept = work.config, work.kept
    name = LINEAR if kept or is_trained(config) else config.judgement.detector
    detector = linear if name == LINEAR else make_detector(config)
    with work.place.open() as executor:
        stored = Stored(work.job.work / folder, executor, work.job.share)
        settings = {"rows": work.rows().of_images(pairs.image_of), "judge": kept}
        settings |= _settings(config)
        return judge_pairs(pairs, detector, name=name, executor=stored, **settings)


def _settings(config: ConfigDict) -> dict[str, int]:
    return {"folds": config.judgement.folds, "top": config.audit.top, "seed": config.seed}


def _repair(
    work: _Work, pairs: Pairs, train: TrainPairs | None
) -> tuple[Misaligned, Judgement | None]:
    """Search for misaligned rows; if rows were put back, judge the repaired pairs.

    With a given judgement, the results of its audit are read, if it has any.
    """
    config, given = work.config, work.config.judgement.path
    if given and (found := read_repair(given, pairs.image_of)):
        return found
    path = "" if are_shards(config.data.path) else config.data.path
    drawn = None if train is None else train.drawn  # by a run, from all pairs
    lines = find_lines(path, np.arange(len(pairs)) if drawn is None else drawn.rows)
    found = search_once(
        work.job, pairs, lambda: search_pairs(work.rows().pairs, config.seed, lines, work.kept)
    )
    judge = partial(_judge_in_closed_form, work)
    return found, judge_repaired(pairs, found, judge)


def _identity(
    pairs: Pairs,
    train: TrainPairs | None,
    config: ConfigDict,
    place: Place,
    judge: KeptJudge | None,
) -> dict[str, Any]:
    """Return everything that the work in progress depends on; it resumes only if this is equal."""
    judged = config.judgement.to_dict()
    settings = {"top": config.audit.top, "seed": config.seed, "share": place.share.count}
    data = {"inputs": pairs.digest, "words": _hash_words(train)}
    kept = {"judge": judge.about._asdict()} if judge else {}
    return {"l2rm_jax": __version__, **data, **judged, **settings, **kept}


def _hash_words(train: TrainPairs | None) -> str:
    """Hash the captions as word indices of the vocabulary; "" if they are vectors."""
    tokens = [] if train is None else train.tokens
    if isinstance(tokens, RegionFeatures) or not tokens:
        return ""
    words = np.concatenate([token_counts(tokens), *tokens], dtype=np.int64)
    return hashlib.blake2b(words, digest_size=16).hexdigest()
