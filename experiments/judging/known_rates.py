"""Measure rates and posteriors of new pairs by a kept judge, with swaps of several kinds.

python -m experiments.judging.known_rates --path=VECTORS --csv=known_rates.csv

VECTORS is what `experiments.papers.vectors` writes of Flickr8k. The judge is kept by an audit of
its training images, all or fewer; the new sets are images of dev and test, some of whose captions
are swapped (`experiments.judging.mismatches`). --csv keeps the sets that it has, so the command
continues where it stopped; --summary has means over the seeds.
"""

from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.judging.crossfit import calibration_error
from experiments.judging.mismatches import mismatched
from experiments.judging.rated import EACH, reference
from experiments.script import (
    add_rows,
    means,
    new_parser,
    rows_by,
    start,
    values_of,
    write_rows,
)
from l2rm_jax.data.captions import read_captions
from l2rm_jax.judging.kept_judge import KeptJudge

KINDS = "random", "similar", "noun", "hard"
PROTOCOLS = {"random": "caption"}
RATES = 0.1, 0.2, 0.3, 0.5
SIZES = 1000, 300
SPLITS = "dev", "test"


class Cell(NamedTuple):
    """Settings of one set; the first columns of its row."""

    reference: int
    images: int
    kind: str
    asked: float
    seed: int


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", required=True, type=Path, help="directory of vectors")
    parser.add_argument("--reference", type=values_of(int), default=[6000], help="images")
    parser.add_argument("--seed", type=values_of(int), default=[*range(8)])
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    parser.add_argument("--summary", type=Path, help="also means over the seeds")
    flags = parser.parse_args()
    judge = cache(lambda images: reference(flags.path, np.arange(images))._replace(witnesses=None))
    kinds = [("clean", 0.0), *product(KINDS, RATES)]
    grid = product(flags.reference, flags.seed, SIZES, kinds)
    cells = [Cell(of, images, *kind, seed) for of, seed, images, kind in grid]
    todo = {cell: partial(measure, flags.path, judge, cell) for cell in cells}
    rows = add_rows(flags.csv, Cell._fields, todo)
    if flags.summary:
        write_rows(flags.summary, summary(rows))


def measure(path: Path, judge: Any, cell: Cell) -> list[dict[str, object]]:
    """Judge one set; return its only row."""
    images, captions, texts = new_vectors(path)
    rng = np.random.default_rng(cell.seed)
    some = np.sort(rng.choice(len(images), cell.images, replace=False))
    rows = (some[:, None] * EACH + np.arange(EACH)).ravel()
    own, captions = np.repeat(np.arange(cell.images), EACH), captions[rows]
    stored = own
    if cell.asked:
        protocol, said = PROTOCOLS.get(cell.kind, cell.kind), [texts[row] for row in rows]
        stored = mismatched(protocol, cell.asked, cell.seed, own, captions, said)
    wrong, used = stored != own, judge(cell.reference)
    return [cell._asdict() | result(used, images[some], captions, stored, wrong)]


def result(
    judge: KeptJudge,
    images: np.ndarray,
    captions: np.ndarray,
    stored: np.ndarray,
    wrong: np.ndarray,
) -> dict[str, object]:
    """Return the numbers of a judged set beside the truth."""
    found = judge.finish([judge.score(images, captions, stored)])
    rate, posterior, true = found.rate, found.posterior, float(wrong.mean())
    listed = wrong[found.order[: found.list_length]]
    values = {
        "true": true,
        "estimate": rate.estimate,
        "low": rate.low,
        "high": rate.high,
        "upper_bound": found.upper_bound,
        "ece": calibration_error(posterior, wrong),
        "brier": np.mean((posterior - wrong) ** 2),
        "brier_of_rate": true * (1 - true),
        "false_alarms": (found.p[~wrong] <= 0.05).mean(),
        "flagged": (found.p[wrong] <= 0.05).mean() if wrong.any() else np.nan,
        "list_false_alarms": 1 - listed.mean() if len(listed) else 0.0,
        "list_recall": listed.sum() / wrong.sum() if wrong.any() else np.nan,
    }
    held = rate.low <= true <= rate.high
    numbers = {name: f"{value:.4f}" for name, value in values.items()}
    return numbers | {"held": bool(held), "told": not found.unreliable_reason}


@cache
def new_vectors(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return vectors and texts of the images of dev and test."""
    sides = (
        np.concatenate([np.load(path / f"{split}_{side}.npy") for split in SPLITS])
        for side in ("ims", "caps")
    )
    texts = [text for split in SPLITS for text in read_captions(path, split)]
    return *(side.astype(np.float32) for side in sides), texts


def summary(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return means over the seeds of each cell."""
    names = [name for name in rows[0] if name not in (*Cell._fields, "held", "told")]
    return [
        dict(zip(Cell._fields, cell, strict=False))
        | {"sets": len(same), "held": sum(str(row["held"]) == "True" for row in same)}
        | means(same, names)
        for cell, same in rows_by(rows, Cell._fields[:-1]).items()
    ]


if __name__ == "__main__":
    start(main)
