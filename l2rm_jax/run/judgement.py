"""The judgement of a run's training pairs, used by the method, and their last split by loss.

`split.by=judgement`, `data.filter=judgement` and `train.draw=judgement` or `rematched` use it.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from l2rm_jax.console import say
from l2rm_jax.data import filters
from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import Data, Rematched, TrainPairs
from l2rm_jax.devices.hosts import is_primary, on_any_host, wait_for_file
from l2rm_jax.errors import ConfigError, DataError, check_names
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.judging import (
    JUDGEMENT_FILE,
    Detector,
    Judgement,
    check_same_pairs,
    judge_pairs,
    read_judgement,
    rematch,
    write_judgement,
)
from l2rm_jax.judging.posterior import RANKING_AUROC
from l2rm_jax.judging.verdict import rate_sentence
from l2rm_jax.methods import LossSplit, Method
from l2rm_jax.methods.split import split_quality
from l2rm_jax.run.fold_runs import is_trained
from l2rm_jax.run.sampling import DRAWS, EVEN, REMATCHED

SPLIT_FILE = "loss_split.npz"  # of the work directory: loss, posterior and side per pair
_KEPT = ("a judgement of pairs", "remove it to have the pairs judged again")
_KEPT_SPLIT = ("a split of pairs", "the next epoch that the run trains writes it again")

# Called with the data and an epoch, opens the detector that judges before that epoch.
OpenDetector = Callable[[Data, int], AbstractContextManager[Detector]]


class Summary(NamedTuple):
    """The report of a run about its judgement.

    Attributes:
      sentence: a line for the screen.
      report: fields of the record `judgement` of the log: rate with its interval, AUROC, and the
        quality of the split at a posterior of 0.5 where the truth is known.
      warnings: reasons why the judgement is unreliable, by the name of the warning.
    """

    sentence: str
    report: dict[str, object]
    warnings: dict[str, str]


def check_judgement(config: ConfigDict, method: Method) -> None:
    """Check that the method supports the use of the judgement that the config asks for.

    Raises:
      ConfigError: one message for each field that does not fit.
    """
    check_names("train", config.train, {"draw": DRAWS})
    wrong = []
    if config.split.by == "judgement" and not method.splits:
        wrong.append(
            f"split.by: found 'judgement', expected 'loss', as {config.method} does not split the "
            "pairs; data.filter=judgement drops the mismatched ones"
        )
    draw = config.train.draw
    chooses = method.splits or {name.partition("_")[0] for name in method.streams} != {"pairs"}
    if draw != EVEN and chooses:
        wrong.append(
            f"train.draw: found {draw!r}, expected 'even', as {config.method} chooses the pairs of "
            "an epoch itself"
        )
    if draw == REMATCHED and method.pair_values and not chooses:
        wrong.append(
            f"train.draw: found 'rematched', expected 'even' or 'judgement', as {config.method} "
            "keeps a number per stored pair, and rematched pairs have none"
        )
    if draw == REMATCHED and config.data.filter == "judgement":
        wrong.append(
            "train.draw: found 'rematched', expected 'even' or 'judgement' with "
            "data.filter=judgement, which drops the pairs that would be rematched"
        )
    if wrong:
        raise ConfigError(*wrong)


def uses_judgement(config: ConfigDict) -> bool:
    """Whether the run needs a judgement of its pairs."""
    by_it = (config.split.by, config.data.filter, config.train.weight)
    return "judgement" in by_it or config.train.draw != EVEN


def judgement_file(workdir: str | Path, epoch: int = 0) -> Path:
    """The file of the judgement that was made before an epoch (counted from 0)."""
    file = Path(workdir) / JUDGEMENT_FILE
    return file.with_stem(f"{file.stem}-{epoch}") if epoch else file


def last_judgement(workdir: str | Path) -> Path:
    """The file of the newest judgement that a run keeps; it may be missing."""
    later = Path(workdir).glob(f"{Path(JUDGEMENT_FILE).stem}-*.npz")
    epochs = (file.stem.rpartition("-")[2] for file in later)
    epoch = max((int(number) for number in epochs if number.isdecimal()), default=0)
    return judgement_file(workdir, epoch)


def judge_data(
    config: ConfigDict,
    data: Data,
    workdir: str | Path,
    open_detector: OpenDetector,
    epoch: int = 0,
) -> tuple[Data, Summary | None]:
    """Judge the training pairs, if the config of the run uses that.

    The judgement is made once, or taken from `judgement.path` (which may have judged all pairs of
    data with a single split, from which the run draws its training pairs), and kept in `workdir` as
    `judgement.npz`; with `train.draw=rematched`, the fields of `Rematched` too, which are added to
    a file without them. One that is made before a later epoch is kept beside it, as
    `judgement-EPOCH.npz`.

    On several hosts, host 0 judges by a detector in closed form; a trained one runs on all of them.
    Host 0 writes the file and every host reads it, so all have the same. If the file
    lacks rematched pairs, every host computes them from its posteriors.

    Args:
      config: config of the run.
      data: data of the run, not filtered by the judgement yet.
      workdir: work directory.
      open_detector: called with the data and the epoch, opens the detector.
      epoch: the epoch (counted from 0) before which the pairs are judged.

    Returns:
      The data whose training pairs have a posterior, rematched or filtered if the config says so,
      and a summary; the same data and None if the run needs no judgement.

    Raises:
      DataError: the file is damaged or of other pairs, there are too few images, or the filter
        leaves no pair.
    """
    if not uses_judgement(config):
        return data, None
    path, made = judgement_file(workdir, epoch), None
    if config.judgement.path:
        if is_primary() and not path.exists():
            made, file = _read_given(config.judgement.path)
            of_training_pairs(made, data.train, file)
    elif is_trained(config):
        if on_any_host(not path.exists()):
            made = _judge(config, data, open_detector, epoch)
    elif is_primary() and not path.exists():
        made = _judge(config, data, open_detector, epoch)
    if made is not None and is_primary():
        write_judgement(path, made)
    wait_for_file(path)
    judgement = read_judgement(path)
    posterior = of_training_pairs(judgement, data.train, path)
    if not config.judgement.path:
        _check_made(judgement, config, path)
    summary = Summary(
        rate_sentence(judgement),
        _report(judgement, data.train, posterior),
        _warnings(judgement),
    )
    train = dataclasses.replace(data.train, posterior=posterior)
    if config.train.draw == REMATCHED:
        rematched = _rematched(path, train, judgement, posterior)
        train = dataclasses.replace(train, rematched=rematched)
    return _filtered(config.data, dataclasses.replace(data, train=train)), summary


def given_judgement(path: str | Path, pairs: Pairs, is_decided: bool = True) -> Judgement:
    """Read the judgement that `judgement.path` names: an audit directory, or its file.

    Args:
      path: the directory or the file.
      pairs: the pairs that it has to belong to.
      is_decided: as in `read_judgement`.

    Raises:
      ConfigError: there is no such file.
      DataError: it is damaged, or of other pairs.
    """
    judgement, file = _read_given(path, is_decided)
    check_same_pairs(judgement, pairs, file)
    return judgement


def _read_given(path: str | Path, is_decided: bool = True) -> tuple[Judgement, Path]:
    """Read the judgement that `judgement.path` names; return its file too."""
    file = Path(path) / JUDGEMENT_FILE if Path(path).is_dir() else Path(path)
    if not has_file(file):
        raise ConfigError(
            f"judgement.path: {file}: no such file, expected an audit directory or its "
            f"{JUDGEMENT_FILE}"
        )
    return read_judgement(file, is_decided), file


def of_training_pairs(
    judgement: Judgement, train: TrainPairs, path: str | Path
) -> Float[np.ndarray, " pairs"]:
    """Return the posteriors of a run's training pairs.

    Args:
      judgement: a judgement of these pairs, or of all pairs that the run has drawn them from.
      train: the training pairs.
      path: the file of the judgement, for error messages.

    Raises:
      DataError: it is a judgement of other pairs.
    """
    drawn, rows = train.drawn, np.arange(len(train))
    if drawn is not None and len(judgement) == len(drawn.whole):
        check_same_pairs(judgement, drawn.whole, path)
        rows = drawn.rows
    else:
        check_same_pairs(judgement, train.pairs, path)
    return judgement.posterior[rows]


def _judge(config: ConfigDict, data: Data, open_detector: OpenDetector, epoch: int) -> Judgement:
    settings = config.judgement
    if is_primary():
        say(f"judging {len(data.train):,} pairs by models that have not seen them")
    with open_detector(data, epoch) as detector:
        return judge_pairs(
            data.train.to_judge,
            detector,
            name=settings.detector,
            folds=settings.folds,
            seed=config.seed,
        )


def _check_made(judgement: Judgement, config: ConfigDict, path: Path) -> None:
    """Check that a kept judgement has the detector and the folds of the config.

    Raises:
      DataError: another detector made it, or another number of folds.
    """
    for name in ("detector", "folds"):
        found, expected = getattr(judgement.made, name), config.judgement[name]
        if found != expected:
            raise DataError(
                f"{path}: made with judgement.{name}={found}, expected {expected}; remove it to "
                "have the pairs judged again"
            )


def _rematched(
    path: Path, train: TrainPairs, judgement: Judgement, posterior: np.ndarray
) -> Rematched:
    """The rematched pairs that are kept with a judgement; computed and added if they are not."""
    names = [f"{REMATCHED}_{field}" for field in Rematched._fields]
    with open_arrays(path, *_KEPT) as file:
        if set(names) <= set(file):
            return Rematched(*(file[name] for name in names))
    rematched = rematch(train.to_judge, posterior)
    if is_primary():
        write_judgement(path, judgement, **dict(zip(names, rematched, strict=True)))
    return rematched


def kept_by_judgement(
    settings: ConfigDict, posterior: Float[np.ndarray, " pairs"]
) -> Int[np.ndarray, " kept"]:
    """Rows of the pairs that `data.filter=judgement` keeps."""
    return np.flatnonzero(1 - posterior > settings.filter_value)


def _filtered(settings: ConfigDict, data: Data) -> Data:
    """Drop training pairs by their judgement if the filter says so."""
    if settings.filter != "judgement":
        return data
    train = data.train
    kept = kept_by_judgement(settings, train.posterior)
    if not len(kept):
        raise DataError(
            f"data.filter=judgement leaves none of the {len(train)} training pairs: the highest "
            f"probability of being matched is {1 - train.posterior.min():.3f}, data.filter_value "
            f"is {settings.filter_value:g}"
        )
    fields = filters.result_fields(settings, train.matched, kept)
    mismatch = dataclasses.replace(data.mismatch, filtered=fields)
    return dataclasses.replace(data, train=train.take(kept), mismatch=mismatch)


def _report(
    judgement: Judgement, train: TrainPairs, posterior: Float[np.ndarray, " pairs"]
) -> dict[str, object]:
    rate = judgement.rate
    values: dict[str, object] = {
        "detector": judgement.made.by,
        "rate": rate.estimate,
        "rate_low": rate.low,
        "rate_high": rate.high,
        "judged_auroc": judgement.auroc,
    }
    if not train.matched.all():
        values |= split_quality(posterior, train.matched)
    return values


def _warnings(judgement: Judgement) -> dict[str, str]:
    if judgement.auroc >= RANKING_AUROC:
        return {}
    return {
        "judgement_cannot_tell": (
            "matched pairs are barely distinguishable from mismatched ones (AUROC "
            f"{judgement.auroc:.2f} against random pairs): the posteriors are close to a guess. "
            "Try more pairs or better features, or train without them: split.by=loss, "
            "train.draw=even"
        )
    }


def keep_split(
    workdir: Path, epoch: int, stored_image: Int[np.ndarray, " N"], split: LossSplit
) -> None:
    """Write the split made before an epoch (counted from 1); it replaces an earlier one."""
    arrays = {"epoch": np.array(epoch), "image": stored_image, **split._asdict()}
    replace_arrays(workdir / SPLIT_FILE, arrays)


def last_split(workdir: str | Path, stored_image: Int[np.ndarray, " N"]) -> LossSplit | None:
    """Read the last split of a run; None if the run has made none.

    Raises:
      DataError: the file is damaged, or of other pairs.
    """
    path = Path(workdir) / SPLIT_FILE
    if not path.exists():
        return None
    with open_arrays(path, *_KEPT_SPLIT) as file:
        image = file["image"]
        split = LossSplit(*(file[name] for name in LossSplit._fields))
    if not np.array_equal(image, stored_image):
        raise DataError(
            f"{path}: found a split of {len(image)} other pairs, expected the "
            f"{len(stored_image)} that the run trains on"
        )
    return split
