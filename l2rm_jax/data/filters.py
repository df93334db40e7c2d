"""Drop training pairs before training: the filtering baselines of RCL (Tab. 8), for any method.

* `truth` drops the pairs known to be mismatched (SAF-C, SGR-C). Real data do not allow this.
* `score` and `share` drop the pairs with low scores in a score file (SAF+CLIP, SGR+CLIP): `score`
  keeps the pairs at or above a threshold, `share` keeps the best share of the pairs.
* `judgement` drops the pairs that are probably mismatched (`run/judgement.py`). They are judged
  after all pairs are read, so this file keeps all of them.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Real

from l2rm_jax.data.drawn_splits import Drawn
from l2rm_jax.data.files import check_entries, check_form, open_array
from l2rm_jax.data.record import is_undivided, read_record
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.jobs.regular_files import has_file

_OF_AUDIT = "kept.npy"  # beside the scores that an audit writes
BY_SCORE = ("score", "share")
FILTERS = ("none", "truth", "score", "share", "judgement")


def kept_pairs(
    config: Any, matched: Bool[np.ndarray, " pairs"], drawn: Drawn | None = None
) -> tuple[Int[np.ndarray, " kept"], Real[np.ndarray, " pairs"] | None]:
    """Return the training pairs that the filter keeps, and the scores of all, if there are any.

    Args:
      config: the `data` part of the config; reads the fields of the filter, and where the data are.
      matched: which pairs are matched.
      drawn: as in `read_scores`.

    Returns:
      Rows of the kept pairs, in ascending order; and the score of each training pair, None without
      `data.scores`.

    Raises:
      ConfigError: an unknown filter, a share out of range, a missing score file, or a value that
        the filter does not use.
      DataError: the scores cannot be read or are not one finite number for each pair; the filter
        keeps no pair, or the threshold drops none.
    """
    check_settings(config)
    scores = None
    if config.scores:
        scores = read_scores(config.scores, len(matched), config.train_images, config.path, drawn)
        if not matched.all() and len(open_scores(config.scores)) != len(matched):
            raise DataError(
                f"{config.scores}: found scores by row of the table, expected one per training "
                f"pair [{len(matched)}], as pairs were mismatched deliberately"
            )
    if config.filter in ("none", "judgement"):
        return np.arange(len(matched)), scores
    if config.filter == "truth":
        kept, reason = np.flatnonzero(matched), "all pairs mismatched"
    else:
        kept, reason = _best_pairs(scores, config), f"scores {scores.min():g} to {scores.max():g}"
    if not len(kept):
        raise DataError(
            f"data.filter={config.filter} would drop all {len(matched)} training pairs: found "
            f"{reason} with data.filter_value={config.filter_value:g}"
        )
    if config.filter == "score" and len(kept) == len(matched):
        raise DataError(
            f"data.filter_value: found {config.filter_value:g}, which drops none of the "
            f"{len(matched)} training pairs ({reason}), expected a value above the lowest"
        )
    return kept, scores


def result_fields(
    config: Any, matched: Bool[np.ndarray, " pairs"], kept: Int[np.ndarray, " kept"]
) -> dict[str, object]:
    """Fields of a results row that describe the filter: name, share kept, mismatch rate left.

    The rate is left out where no pair is known to be mismatched.
    """
    name = config.filter
    if config.filter_value:
        name = f"{name} {config.filter_value:g}"
    if config.filter in BY_SCORE:
        name = f"{name} of {Path(config.scores).name}"
    known = {} if matched.all() else {"filter_true_rate": float(1 - matched[kept].mean())}
    return {"filter": name, "filter_kept": len(kept) / len(matched), **known}


def check_settings(config: Any) -> None:
    """Check that the filter fields of the config fit each other.

    Raises:
      ConfigError: lists every field that does not fit.
    """
    if config.filter not in FILTERS:
        raise ConfigError(f"data.filter: found {config.filter!r}, expected one of {FILTERS}")
    wrong = []
    if config.filter in BY_SCORE and not config.scores:
        wrong.append(f"data.scores: found no file, data.filter={config.filter} requires one")
    if config.filter_value and config.filter in ("none", "truth"):
        wrong.append(
            f"data.filter_value cannot be combined with data.filter={config.filter}; set "
            "data.filter to score, share or judgement"
        )
    if config.filter == "judgement" and not 0 < config.filter_value < 1:
        wrong.append(
            f"data.filter_value: found {config.filter_value:g}, expected a probability of being "
            "matched, more than 0 and less than 1, such as 0.5"
        )
    if config.filter == "share" and not 0 < config.filter_value <= 1:
        wrong.append(
            f"data.filter_value: found {config.filter_value:g}, expected a share of the pairs, "
            "more than 0 and at most 1"
        )
    if wrong:
        raise ConfigError(*wrong)


def read_scores(
    path: str | Path,
    pairs: int,
    images: int = 0,
    directory: str | Path = "",
    drawn: Drawn | None = None,
) -> Real[np.ndarray, " pairs"]:
    """Read one score for each stored training pair; a higher score means a better match.

    A file with one number per row of the table that the data were imported from is taken by row;
    captions of the same row have the same score.

    Args:
      path: a `.npy` file.
      pairs: number of training pairs.
      images: `data.train_images`; the error message mentions it, because the file may cover all
        images by mistake.
      directory: directory of the data; "" for data without one.
      drawn: the splits that the run draws from data with a single split: the file may then have a
        score for each pair of the data, as an audit of them writes it.

    Raises:
      DataError: as `kept_pairs`, of the scores.
    """
    scores = open_scores(path)
    if drawn is not None and len(scores) != pairs:
        return read_scores(path, len(drawn.whole), directory=directory)[drawn.rows]
    rows, count = _rows_of_table(directory, pairs)
    if len(scores) == count != pairs:
        return scores[rows - 1]
    part = f" of the first {images} images (data.train_images)" if images else ""
    expected = f"numbers [{pairs}], one per training pair{part}"
    if count is not None:
        expected += f", or [{count}], one per row of the imported table"
    check_form(path, scores, len(scores) == pairs, expected)
    return scores


def _rows_of_table(
    directory: str | Path, pairs: int
) -> tuple[Int[np.ndarray, " pairs"] | None, int | None]:
    """Read the row of each training pair in the imported table, from 1, and the number of rows.

    Both are None for data that were not imported from a table.
    """
    record, file = read_record(directory) if directory else None, _rows_file(directory)
    if record is None or not has_file(file):
        return None, None
    rows = np.array(open_array(file))
    # The pairs of a run are not the first ones if it draws them from a single split.
    rows = rows if is_undivided(directory) else rows[:pairs]
    return (rows, record["rows"]["read"]) if len(rows) == pairs else (None, None)


def _rows_file(directory: str | Path) -> Path:
    return split_file(directory, "train", "rows")


def order_warning(path: str | Path, pairs: int, directory: str | Path) -> str | None:
    """Warn of scores in the order of the pairs where the table has another one; None if not.

    Scores that an audit wrote have the order of the pairs. Arguments as in `read_scores`.
    """
    rows, count = _rows_of_table(directory, pairs)
    is_sorted = rows is None or bool((np.diff(rows) >= 0).all())
    if is_sorted or len(open_scores(path)) != pairs or Path(path).with_name(_OF_AUDIT).exists():
        return None
    other = f"scores by row of the table need all its {count:,} rows"
    if count == pairs:
        other = f"sort scores by row of the table: scores[rows - 1] with rows = {_rows_file('')}"
    return (
        f"{path}: its {pairs:,} scores are taken in the order of the training pairs, which is not "
        f"the order of the table: {_rows_file(directory)} has the row of each pair; {other}"
    )


def open_scores(path: str | Path) -> Real[np.ndarray, " scores"]:
    """Read a score file without checking the number of scores.

    Raises:
      DataError: the file cannot be read, or holds anything but a vector of finite numbers.
    """
    scores = np.array(open_array(Path(path)))
    is_vector = scores.ndim == 1 and scores.dtype.kind in "fiu"
    check_form(path, scores, is_vector, "one axis of numbers, one per training pair")
    check_entries(path, scores, np.isfinite(scores), "a finite number")
    return scores


def _best_pairs(scores: Real[np.ndarray, " pairs"], config: Any) -> Int[np.ndarray, " kept"]:
    """Rows of the pairs with the best scores; of equal scores, the first pairs are kept."""
    if config.filter == "score":
        return np.flatnonzero(scores >= config.filter_value)
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    return np.sort(order[: round(config.filter_value * len(scores))])
