"""Review by eye: a random sample of pairs, the decisions on them, and the rate that they imply.

The sample is the only check that makes no assumption about mismatched pairs. Pairs are drawn by
strata of their posterior with known probabilities, so the weighted share of wrong pairs is an
unbiased estimate of the share of mismatched pairs, including near mismatches.
"""

import hashlib
import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtri

from l2rm_jax.data.pairs import same_pairs
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing.csv_rows import find_dialect
from l2rm_jax.jobs.regular_files import has_file

SIZE = 100  # pairs of a review
FITS, WRONG, UNSURE = DECISIONS = ("fits", "wrong", "unsure")
LIST, REVIEW = "list", "review"  # view of the page in which a pair was decided
HEADER = ("row", "decision", "caption", "door", "weight")
_REQUIRED = HEADER[:2]
PAIRS = "pairs"  # a further column: fingerprint of the pairs
_EDGES = (0.05, 0.5, 0.95)  # of the strata
_Z = ndtri(0.95)  # of a 90% interval
_DOOR = re.compile(r"\w[\w .-]{0,39}", re.ASCII)


class Decisions(NamedTuple):
    """Decisions of a person or another judge, in the order of the file.

    Attributes:
      row: the pairs.
      decision: one of `DECISIONS` for each.
      caption: row of the caption that was chosen instead; -1 for none.
      door: `LIST`, `REVIEW`, or the name of another judge of the review.
      weight: how many pairs each pair of the review represents, as the file says; NaN if it does
        not.
    """

    row: Int[np.ndarray, " n"]
    decision: np.ndarray
    caption: Int[np.ndarray, " n"]
    door: np.ndarray
    weight: Float[np.ndarray, " n"]

    def rows(self, decision: str) -> Int[np.ndarray, " m"]:
        """Return the pairs with this decision."""
        return self.row[self.decision == decision]

    @property
    def is_review(self) -> Bool[np.ndarray, " n"]:
        """Whether each pair was decided in the review, blind to the results of the audit."""
        return self.door != LIST

    def of_review(self, rows: Int[np.ndarray, " m"]) -> np.ndarray:
        """Return the decisions of the review on these pairs; "" for undecided ones."""
        decided = dict(zip(self.row[self.is_review], self.decision[self.is_review], strict=True))
        return np.array([decided.get(row, "") for row in rows], object)

    @property
    def by(self) -> str:
        """Who decided the review: `eye` for a person on the page, or names of other judges."""
        names = sorted({*self.door[self.is_review].tolist()})
        return " and ".join("eye" if name == REVIEW else name for name in names)

    @property
    def taken(self) -> dict[int, int]:
        """Row of the caption that was chosen instead, by the row of the wrong pair."""
        chosen = (self.decision == WRONG) & (self.caption >= 0)
        return dict(zip(self.row[chosen].tolist(), self.caption[chosen].tolist(), strict=True))

    @property
    def entries(self) -> list[tuple[int, str, int, str]]:
        """The decisions one by one: row, decision, caption and door."""
        columns = self.row, self.decision, self.caption, self.door
        return [*zip(*(column.tolist() for column in columns), strict=True)]


def hash_decisions(entries: Sequence[tuple[int, str, int, str]]) -> str:
    """Hash `Decisions.entries`, in hexadecimal."""
    return hashlib.blake2b(repr(entries).encode(), digest_size=8).hexdigest()


class ReviewedRate(NamedTuple):
    """Share of mismatched pairs by eye.

    Attributes:
      estimate: weighted share of wrong pairs, in [0, 1].
      low: lower end of its 90% interval.
      high: upper end.
      pairs: number of pairs of the review that were decided to fit or to be wrong.
    """

    estimate: float
    low: float
    high: float
    pairs: int


def draw_review(
    posterior: Float[np.ndarray, " pairs"], n: int = SIZE, seed: int = 0
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Draw pairs for the review, without replacement and in random order.

    Each stratum gets pairs in proportion to its size times the standard deviation implied by its
    mean posterior. The mean is clipped to [0.05, 0.95], because the review has to check the pairs
    of which the audit is sure.

    Args:
      posterior: probability that each pair is mismatched.
      n: number of pairs to draw; all if there are fewer.
      seed: seed of the draw.

    Returns:
      The pairs, and how many pairs each represents: one over the probability that it was drawn.
    """
    rng = np.random.default_rng(seed)
    stratum = np.searchsorted(_EDGES, posterior)
    members = [np.flatnonzero(stratum == each) for each in np.unique(stratum)]
    sizes = np.array([len(rows) for rows in members])
    mean = np.array([posterior[rows].mean() for rows in members]).clip(0.05, 0.95)
    counts = _allocate(sizes, sizes * np.sqrt(mean * (1 - mean)), min(n, len(posterior)))
    drawn = [rng.choice(rows, count, False) for rows, count in zip(members, counts, strict=True)]
    order = rng.permutation(counts.sum())
    return np.concatenate(drawn)[order], np.repeat(sizes / counts, counts)[order]


def _allocate(sizes: np.ndarray, shares: np.ndarray, total: int) -> Int[np.ndarray, " strata"]:
    """Allocate `total` draws in proportion to `shares`: at least one, at most all members each.

    Each next draw goes to the stratum that is furthest behind its share.
    """
    counts = np.ones(len(sizes), np.int64)
    while counts.sum() < total:
        counts[np.argmax(np.where(counts < sizes, shares / counts, -1))] += 1
    return counts


def read_decisions(path: str | Path, pairs: int, fingerprint: str = "") -> Decisions:
    """Read the decisions that the page of an audit saves, also after another program saved them.

    It is a table with the columns of `HEADER`, in any order and with any separator. Other columns
    are left out, and all but `row` and `decision` may be missing or empty: the decisions are then
    of the review. Whole numbers may be written as `412.0`, and numbers with a decimal comma.

    Args:
      path: the file.
      pairs: number of pairs of the audit.
      fingerprint: of these pairs (`Pairs.fingerprint`), with which the column `pairs` of the file
        is compared; "" compares nothing, as does a file without the column.

    Raises:
      ConfigError: the file does not exist.
      DataError: it is not such a table, or of other pairs; names each line that is wrong.
    """
    path = Path(path)
    if not has_file(path):
        raise ConfigError(f"config.audit.review: {path}: no such file")
    dialect = find_dialect(path, "csv", [*HEADER, PAIRS])
    names = [name.strip().lower() for name in dialect.names]
    if not set(_REQUIRED) <= set(names):
        found = ",".join(dialect.names) or "an empty file"
        raise DataError(f"{path}:1: found {found}, expected the columns {','.join(HEADER)}")
    problems, decided, lines_of, number = [], [], {}, 1
    for text, fields in dialect.records():
        line, number = number, number + max(1, len(text.splitlines()))
        if line == 1:
            continue
        cells = dict(zip_longest(names, map(str.strip, fields), fillvalue=""))
        row, decision, caption, door, weight = (cells.get(name, "") for name in HEADER)
        entry = _whole(row), decision, _whole(caption), door or REVIEW, _decimal(weight)
        wrong = _problem(entry, pairs)
        if not wrong and (first := lines_of.setdefault(entry[0], line)) != line:
            wrong = f"found row {entry[0]} again, expected each row once; first in line {first}"
        if not wrong and not same_pairs(cells.get(PAIRS, ""), fingerprint):
            wrong = (
                f"found a decision on the pairs {cells[PAIRS]}, expected the pairs {fingerprint}"
            )
        if wrong:
            problems.append(f"{path}:{line}: {wrong}")
        else:
            decided.append(entry)
    if problems:
        raise DataError(*problems)
    columns = list(zip(*decided, strict=True)) or [()] * len(HEADER)
    return Decisions(
        np.array(columns[0], np.int64),
        np.array(columns[1], object),
        np.array([cell or -1 for cell in columns[2]], np.int64),
        np.array(columns[3], object),
        np.array([cell or np.nan for cell in columns[4]], float),
    )


def _whole(cell: str) -> str:
    """Return a whole number without the fraction of zeros that other programs append."""
    return re.sub(r"(?<=\d)[.,]0+$", "", cell)


def _decimal(cell: str) -> str:
    """Return a number with a decimal point."""
    return cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell


def check_sample(
    decisions: Decisions, drawn: Int[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> None:
    """Check that the decisions of the review are on drawn pairs, with their weights if given.

    Raises:
      DataError: lists the other pairs; the decisions belong to another audit.
    """
    weights = dict(zip(drawn.tolist(), weight.tolist(), strict=True))
    wrong = [
        f"config.audit.review: row {row}{'' if np.isnan(own) else f' with weight {own:g}'} is not "
        "in this audit's review, "
        "expected decisions from the page of an audit of the same data, settings and seed"
        for row, own in zip(
            decisions.row[decisions.is_review], decisions.weight[decisions.is_review], strict=True
        )
        if int(row) not in weights or not (np.isnan(own) or np.isclose(weights[int(row)], own))
    ]
    if wrong:
        raise DataError(*wrong)


def _problem(cells: Sequence[str], pairs: int) -> str | None:
    """Return the problem with the cells of `HEADER`; None if they are valid."""
    row, decision, caption, door, weight = cells
    last = f"0 to {pairs - 1}"
    for name, cell in (("row", row), *((("caption", caption),) if caption else ())):
        if not (cell.isascii() and cell.isdecimal() and int(cell) < pairs):
            return f"{name}: found {cell!r}, expected {last}"
    if decision not in DECISIONS:
        return f"decision: found {decision!r}, expected one of {', '.join(DECISIONS)}"
    if not _DOOR.fullmatch(door):
        return (
            f"door: found {door!r}, expected {LIST}, {REVIEW}, or the name of another judge in at "
            "most 40 letters, digits, spaces, dots and hyphens"
        )
    if not weight or (door != LIST and _is_weight(weight)):
        return None
    expected = "none" if door == LIST else f"a number from 1, or none, as door is {door}"
    return f"weight: found {weight!r}, expected {expected}"


def _is_weight(cell: str) -> bool:
    try:
        return 1 <= float(cell) < np.inf
    except ValueError:
        return False


def reviewed_rate(
    decisions: Decisions, drawn: Int[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> ReviewedRate | None:
    """Estimate the share of mismatched pairs from the review; None if no pair of it is decided.

    Pairs of equal weight form a stratum. Its share of wrong pairs is weighted by its size, whatever
    the number of decided pairs; a stratum without decided pairs is left out. The interval joins
    Wilson's intervals of the strata: each end is as far from the estimate as the root of the
    summed squares of their weighted distances (Zou and Donner, Construction of confidence limits
    about effect measures: a general approach, Statistics in Medicine 27, 2008). Pairs decided as
    unsure are left out.

    Args:
      decisions: the decisions.
      drawn: all pairs of the review.
      weight: how many pairs each represents.
    """
    words = decisions.of_review(drawn)
    used = (words == FITS) | (words == WRONG)
    if not used.any():
        return None
    own, wrong = weight[used], words[used] == WRONG
    strata = np.unique(own)
    size = np.array([weight[weight == each].sum() for each in strata])
    share = size / size.sum()
    count = np.array([np.count_nonzero(own == each) for each in strata])
    found = np.array([np.count_nonzero(wrong[own == each]) for each in strata])
    wrong_share = found / count
    estimate = float(share @ wrong_share)
    below, above = (
        float(np.sqrt(share**2 @ (end - wrong_share) ** 2)) for end in _wilson(wrong_share, count)
    )
    return ReviewedRate(estimate, max(0.0, estimate - below), min(1.0, estimate + above), len(own))


def _wilson(
    share: Float[np.ndarray, " strata"], count: Int[np.ndarray, " strata"]
) -> tuple[Float[np.ndarray, " strata"], Float[np.ndarray, " strata"]]:
    """Compute the 90% interval of a share of `count` independent draws (Wilson, 1927)."""
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * np.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return np.clip(middle - half, 0, share), np.clip(middle + half, share, 1)
