"""The judgement of the training pairs by cross-fitting: computed once, kept in the workdir.

`split.by=crossfit`, `data.filter=crossfit` and `train.draw=posterior` or `rematched` use it. The
linear detector is called here; the trained one (`detector`) is handed in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.crossfit import (
    Judgement,
    assign_folds,
    caption_vectors,
    image_vectors,
    judge_pairs,
    rematch,
)
from l2rm_jax.data import filters
from l2rm_jax.data.files import open_array, open_arrays, replace_arrays
from l2rm_jax.data.pairs import Data, PairDataset, Rematched
from l2rm_jax.devices.hosts import is_primary, on_any_host, wait_for_file
from l2rm_jax.errors import ConfigError, DataError, check_names
from l2rm_jax.methods import EpochPlan, Method
from l2rm_jax.methods.split import SPLITS, THRESHOLD, split_quality

CROSSFIT_FILE = "crossfit.npz"
REMATCHED = "rematched"
DRAWS = ("even", "posterior", REMATCHED)  # the values of `train.draw`
LINEAR = "linear"  # the other values of `split.detector` are a method and a head
# Below this AUROC of matched pairs against known negatives, posteriors are close to a guess.
MIN_SEPARATION = 0.65
_AGAIN = "remove the file to have the pairs judged again"
_KEPT = ("a judgement of pairs", _AGAIN)


class Summary(NamedTuple):
    """What a run reports about its judgement.

    Attributes:
      sentence: a line for the screen.
      report: fields of the record `crossfit` of the log: level, rate with its interval, separation,
        and the quality of the split at a posterior of 0.5 where the truth is known.
      warnings: why the judgement is doubtful, by the name of the warning.
    """

    sentence: str
    report: dict[str, object]
    warnings: dict[str, str]


def check_judgement(config: ConfigDict, method: Method) -> None:
    """Check that the method can use what the config asks of cross-fitting.

    Raises:
      ConfigError: one message for each field that does not fit.
    """
    check_names("split", config.split, {"by": SPLITS, "level": ("auto", "pair", "image")})
    check_names("train", config.train, {"draw": DRAWS})
    wrong = []
    if config.split.by == "crossfit" and not method.splits:
        wrong.append(
            f"split.by: 'crossfit', expected 'loss', as {config.method} does not split the pairs; "
            "data.filter=crossfit drops the mismatched ones"
        )
    draw = config.train.draw
    chooses = method.splits or {name.partition("_")[0] for name in method.streams} != {"pairs"}
    if draw != "even" and chooses:
        wrong.append(
            f"train.draw: {draw!r}, expected 'even', as {config.method} chooses the pairs of an "
            "epoch itself"
        )
    if draw == REMATCHED and method.pair_values and not chooses:
        wrong.append(
            f"train.draw: 'rematched', expected 'even' or 'posterior', as {config.method} keeps a "
            "number for each stored pair, which rematched ones lack"
        )
    if draw == REMATCHED and config.data.filter == "crossfit":
        wrong.append(
            "train.draw: 'rematched', expected 'even' or 'posterior' with data.filter=crossfit, "
            "which drops the pairs that would be rematched"
        )
    if config.split.held_out >= config.split.folds:
        wrong.append(
            f"split.held_out: {config.split.held_out}, expected -1 (none) or a fold, 0 to "
            f"{config.split.folds - 1}"
        )
    if wrong:
        raise ConfigError(*wrong)


def uses_crossfit(config: ConfigDict) -> bool:
    """Whether the run needs a judgement of its pairs."""
    asked = (config.split.by, config.data.filter, config.train.draw)
    return not {"crossfit", "posterior", REMATCHED}.isdisjoint(asked)


def image_folds(split: ConfigDict, train: PairDataset) -> np.ndarray:
    """The fold of each image, `[images]`: a hash of its row, or what `split.fold_file` says.

    Raises:
      DataError: the file does not hold a fold for each image.
    """
    if split.fold_file:
        return _read_folds(split, len(train.images))
    return assign_folds(np.arange(len(train.images)), split.folds, seed=0)


def _read_folds(split: ConfigDict, images: int) -> np.ndarray:
    folds = open_array(Path(split.fold_file))
    if folds.shape != (images,) or not np.isin(folds, np.arange(split.folds)).all():
        raise DataError(
            f"{split.fold_file}: expected the fold of each of the {images} images, 0 to "
            f"{split.folds - 1}, found {folds.dtype} {list(folds.shape)}"
        )
    return np.array(folds)


def pairs_outside_fold(split: ConfigDict, train: PairDataset) -> np.ndarray:
    """Rows of the training pairs that are not in the fold `split.held_out`; all if it is none."""
    return np.flatnonzero(image_folds(split, train)[train.stored_image] != split.held_out)


def leave_out_fold(split: ConfigDict, data: Data) -> Data:
    """Return the data without the training pairs of the fold `split.held_out`, if it is one."""
    if split.held_out < 0:
        return data
    train = data.train
    pairs = pairs_outside_fold(split, train)
    mismatch = replace(data.mismatch, left_out=len(train) - len(pairs))
    return replace(data, train=train.take(pairs), mismatch=mismatch)


def judgement_file(workdir: str | Path, epoch: int = 0) -> Path:
    """The file of the judgement that was made before an epoch (counted from 0)."""
    name = Path(CROSSFIT_FILE)
    return Path(workdir) / (name.with_stem(f"{name.stem}-{epoch}") if epoch else name)


def judge_data(
    config: ConfigDict,
    data: Data,
    workdir: str | Path,
    detect: Callable[[Data, int], Judgement] | None = None,
    epoch: int = 0,
) -> tuple[Data, Summary | None]:
    """Judge the training pairs by cross-fitting, if the config of the run uses that.

    The judgement is computed once and kept in `workdir` as `crossfit.npz`: the fields of
    `crossfit.Judgement`, the stored image and the fold of each pair, the level that was asked, and
    the detector; with `train.draw=rematched`, the fields of `data.pairs.Rematched` too, which are
    added to a file without them. One that is made before a later epoch is kept beside it, as
    `crossfit-EPOCH.npz`.

    On several hosts, host 0 judges by the linear detector; the trained one runs on all of them.
    Host 0 writes the file and every host reads it, so all have the same. Rematched pairs that the
    file lacks are computed by every host, from what it says.

    Args:
      config: config of the run.
      data: data of the run, not filtered by crossfit yet.
      workdir: work directory.
      detect: the trained detector, called with the data and the epoch; the linear one needs none.
      epoch: the epoch (counted from 0) before which the pairs are judged.

    Returns:
      The data whose training pairs have a posterior, rematched or filtered if the config says so,
      and a summary; the same data and None if the run needs no judgement.

    Raises:
      DataError: the file is damaged or of other pairs, there are too few images, or the filter
        leaves no pair.
      DivergedError: rematching does not converge.
    """
    if not uses_crossfit(config):
        return data, None
    split, path = config.split, judgement_file(workdir, epoch)
    folds, judgement = _own_folds(split, data.train), None
    key = _key(split, data.train, folds)
    if split.detector != LINEAR:
        if on_any_host(not path.exists()):
            judgement = detect(data, epoch)
    elif is_primary() and not path.exists():
        judgement = _judge(data.train, folds, asked_level(split))
    if judgement is not None and is_primary():
        replace_arrays(path, judgement._asdict() | key)
    wait_for_file(path)
    judgement = read_judgement(path, key)
    summary = Summary(_sentence(judgement), _report(judgement, data.train), _warnings(judgement))
    train = replace(data.train, posterior=judgement.posterior)
    if config.train.draw == REMATCHED:
        train = replace(train, rematched=_rematched(path, train, judgement))
    return _filtered(config.data, replace(data, train=train)), summary


def _key(split: ConfigDict, train: PairDataset, folds: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays that say which pairs a judgement is of, and how they were judged."""
    return {
        "image": train.stored_image,
        "fold": folds[train.stored_image],
        "asked_level": np.array(split.level),
        "detector": np.array(split.detector),
    }


def last_judgement(
    config: ConfigDict, train: PairDataset, workdir: str | Path
) -> tuple[Judgement, np.ndarray]:
    """Read the newest judgement that a run keeps; nothing is judged.

    Args:
      config: config of a run that uses cross-fitting.
      train: the training pairs, not filtered by crossfit.
      workdir: work directory of the run.

    Returns:
      The judgement, and the fold of each pair.

    Raises:
      DataError: the file is missing or damaged, or of other pairs.
    """
    name = judgement_file(workdir)
    later = [path.stem.rpartition("-")[2] for path in Path(workdir).glob(f"{name.stem}-*.npz")]
    epoch = max((int(number) for number in later if number.isdecimal()), default=0)
    key = _key(config.split, train, _own_folds(config.split, train))
    return read_judgement(judgement_file(workdir, epoch), key), key["fold"]


def asked_level(split: ConfigDict) -> str | None:
    """The level of the judgement; None lets the data decide."""
    return None if split.level == "auto" else split.level


def _own_folds(split: ConfigDict, train: PairDataset) -> np.ndarray:
    """The folds in which a run judges its pairs.

    A run that leaves out a fold divides the images of the others anew, by another hash: the folds
    that are left would be one fewer.
    """
    if split.held_out < 0:
        return image_folds(split, train)
    return assign_folds(np.arange(len(train.images)), split.folds, seed=1)


def _judge(train: PairDataset, folds: np.ndarray, level: str | None) -> Judgement:
    """Judge each fold by the linear detector fitted to the others."""
    vectors = image_vectors(train).rows, caption_vectors(train).rows
    return judge_pairs(*vectors, train.stored_image, folds, level=level)


def _rematched(path: Path, train: PairDataset, judgement: Judgement) -> Rematched:
    """The rematched pairs that are kept with a judgement; computed and added if they are not."""
    with open_arrays(path, *_KEPT) as file:
        stored = dict(file)
    names = [f"{REMATCHED}_{field}" for field in Rematched._fields]
    if set(names) <= set(stored):
        return Rematched(*(stored[name] for name in names))
    vectors = image_vectors(train).rows, caption_vectors(train).rows
    rematched = rematch(*vectors, train.stored_image, judgement.posterior, judgement.level)
    if is_primary():
        replace_arrays(path, stored | dict(zip(names, rematched, strict=True)))
    return rematched


def read_judgement(path: str | Path, key: Mapping[str, np.ndarray]) -> Judgement:
    """Read the judgement of a run.

    Args:
      path: the file `crossfit.npz` of a work directory.
      key: arrays that the file must hold: which pairs were judged, and how.

    Raises:
      DataError: the file is damaged, or holds another array of `key`.
    """
    with open_arrays(path, *_KEPT) as file:
        # A file of a version without other detectors does not name its own.
        stored = {"detector": np.array(LINEAR), **file}
        values = {name: stored[name] for name in (*Judgement._fields, *key)}
    for name, expected in key.items():
        if not np.array_equal(values.pop(name), expected):
            raise DataError(f"{path}: its {name} is not that of this run; {_AGAIN}")
    return Judgement(**{name: x if x.ndim else x.item() for name, x in values.items()})


def _filtered(settings: ConfigDict, data: Data) -> Data:
    """Drop training pairs by their posterior if the filter says so."""
    if settings.filter != "crossfit":
        return data
    train, posterior = data.train, data.train.posterior
    kept = np.flatnonzero(posterior > settings.filter_value)
    if not len(kept):
        raise DataError(
            f"data.filter=crossfit leaves none of the {len(train)} training pairs: the highest "
            f"posterior is {posterior.max():.3f}, data.filter_value is {settings.filter_value:g}"
        )
    fields = filters.result_fields(settings, train.matched, kept)
    mismatch = replace(data.mismatch, filtered=fields)
    return replace(data, train=train.take(kept), mismatch=mismatch)


def _sentence(judgement: Judgement) -> str:
    return (
        f"cross-fitting, {judgement.level} by {judgement.level}: {judgement.rate:.1%} of the pairs "
        f"fit no better than random ones (90%: {judgement.rate_low:.1%} to "
        f"{judgement.rate_high:.1%})"
    )


def _report(judgement: Judgement, train: PairDataset) -> dict[str, object]:
    names = ("level", "rate", "rate_low", "rate_high", "separation")
    values: dict[str, object] = {name: getattr(judgement, name) for name in names}
    if not train.matched.all():
        mismatched = 1 - judgement.posterior
        values |= split_quality(mismatched <= THRESHOLD, mismatched, train.matched)
    return values


def _warnings(judgement: Judgement) -> dict[str, str]:
    if judgement.separation >= MIN_SEPARATION:
        return {}
    return {
        "crossfit_cannot_tell": (
            "cross-fitting cannot tell matched pairs from mismatched ones (AUROC "
            f"{judgement.separation:.2f} against random pairs): its posteriors are close to a "
            "guess. Try more pairs or better features, or split.by=loss"
        )
    }


def draw_pairs(plan: EpochPlan, train: PairDataset, seed: int, epoch: int) -> EpochPlan:
    """Keep each pair of a plan with the probability that it is matched, and add rematched ones.

    So an epoch has each pair at most once, and in the mean as many pairs as are matched. If there
    are rematched pairs, it has each of them too, with the probability of its weight.

    Args:
      plan: plan of the epoch, whose streams are rows of pairs, `[n]`.
      train: the training pairs, with a posterior.
      seed: seed of the run.
      epoch: the epoch, counted from 0.

    Returns:
      A plan with streams of that shape; with rematched pairs `[n, 2]`: the pair that gives the
      image, and the one that gives the caption.

    Raises:
      DataError: no pair is drawn.
    """
    rng = np.random.default_rng([seed, epoch])
    drawn = rng.random(len(train)) < train.posterior
    streams = {name: rows[drawn[rows]] for name, rows in plan.streams.items()}
    draw, expected = "posterior", math.fsum(train.posterior)
    if train.rematched is not None:
        draw, expected = REMATCHED, expected + math.fsum(train.rematched.weight)
        more = _draw_rematched(train, rng)
        streams = {
            name: np.concatenate([np.stack([rows, rows], axis=1), more])
            for name, rows in streams.items()
        }
    for name, rows in streams.items():
        if not len(rows):
            raise DataError(
                f"train.draw={draw} draws none of the {len(plan.streams[name])} training pairs: "
                f"their {'posteriors' if draw == 'posterior' else 'weights'} sum to {expected:.2g}"
            )
    return replace(plan, streams=streams)


def _draw_rematched(train: PairDataset, rng: np.random.Generator) -> np.ndarray:
    """Pairs that give image and caption, `[n, 2]`, of each rematched pair that is drawn."""
    image, caption, weight = train.rematched
    drawn = rng.random(len(weight)) < weight
    stored, pair = np.unique(train.stored_image, return_index=True)
    return np.stack([pair[np.searchsorted(stored, image[drawn])], caption[drawn]], axis=1)
