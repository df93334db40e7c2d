"""Measure how often an audit's bounds hold the truth, with swaps among similar images too.

python -m experiments.judging.bound --path=DIR --csv=near_bound.csv --summary=near_bound_summary.csv

66 audits of Flickr8k, whose DIR has train_minilm.npy: other images for each seed, one or five
captions each, mismatched by four protocols (`experiments.judging.mismatches`). The bounds are the
low end of the rate's interval and `Judgement.upper_bound`. --csv keeps the audits that it has, so
the command continues where it stopped. --summary has a row for each protocol: the share of audits
whose interval of the rate, and whose bounds, hold the truth, and means. Without --path it audits
nothing.
"""

from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.judging.audit import Vectors, load_vectors
from experiments.judging.mismatches import mismatched
from experiments.script import add_rows, new_parser, start, write_rows
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import Judgement, judge_pairs

PROTOCOLS = "image", "caption", "noun", "hard"
RATES = 0.1, 0.2, 0.4
KINDS = (1000, 5), (2000, 5), (2000, 1)  # images, captions of each
SEEDS = {(1000, 5): (0, 1), (2000, 5): (0,), (2000, 1): (1, 2)}
CLEAN_SEEDS = {(1000, 5): range(6), (2000, 5): range(3), (2000, 1): range(3)}
CLEAN = "none"


class Cell(NamedTuple):
    """Settings of one audit; the first columns of its row."""

    images: int
    captions: int
    protocol: str
    asked: float
    seed: int


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", type=Path, help="directory of Flickr8k")
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    parser.add_argument("--summary", type=Path, help="also a row for each protocol")
    flags = parser.parse_args()
    vectors = load_vectors(flags.path, 0) if flags.path else None
    todo = {cell: partial(measure, cell, vectors) for cell in cells()} if vectors else {}
    rows = add_rows(flags.csv, Cell._fields, todo)
    if flags.summary:
        write_rows(flags.summary, summary(rows))


def cells() -> list[Cell]:
    """The audits, whose protocols come in turns; `image` is `caption` for one caption an image."""
    clean = [Cell(*kind, CLEAN, 0.0, seed) for kind in KINDS for seed in CLEAN_SEEDS[kind]]
    swapped = [
        Cell(*kind, protocol, rate, seed)
        for kind in KINDS
        for seed, rate, protocol in product(
            SEEDS[kind], RATES, PROTOCOLS if kind[1] > 1 else PROTOCOLS[1:]
        )
    ]
    return clean + swapped


def measure(cell: Cell, vectors: Vectors) -> list[dict[str, object]]:
    """Audit one cell; return its only row."""
    first = cell.seed * cell.images
    rows = np.arange(5 * first, 5 * (first + cell.images), 5 // cell.captions)
    own, captions = vectors.caption_image[rows] - first, vectors.captions["minilm"][rows]
    texts = [vectors.texts[row] for row in rows]
    protocol = "image" if cell.protocol == CLEAN else cell.protocol
    stored = mismatched(protocol, cell.asked, cell.seed, own, captions, texts)
    images, words = vectors.images[first : first + cell.images], vectors.captions["tfidf"][rows]
    found = judge_pairs(Pairs(images, captions, stored, words=words), seed=cell.seed)
    return [cell._asdict() | bounds(found, float(np.mean(stored != own)))]


def bounds(found: Judgement, true: float) -> dict[str, object]:
    """The bounds of an audit beside the truth."""
    rate = found.rate
    return {
        "true": f"{true:.4f}",
        "rate": f"{rate.estimate:.4f}",
        "at_least": f"{rate.low:.4f}",
        "rate_high": f"{rate.high:.4f}",
        "at_most": f"{found.upper_bound:.4f}",
        "told": not found.unreliable_reason,
        "rate_held": bool(rate.low <= true <= rate.high),
        "held": bool(rate.low <= true <= found.upper_bound),
    }


def summary(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """A row for each protocol, and one for all: of the audits that tell the number."""
    told = [row for row in rows if str(row["told"]) == "True"]
    kinds = [
        (name, [row for row in told if row["protocol"] == name]) for name in (CLEAN, *PROTOCOLS)
    ]

    def mean(same: list[dict[str, object]], name: str) -> str:
        return f"{np.mean([float(row[name]) for row in same]):.3f}"

    def share(same: list[dict[str, object]], name: str) -> str:
        return f"{np.mean([str(row[name]) == 'True' for row in same]):.2f}"

    return [
        {
            "protocol": protocol,
            "audits": len(same),
            "rate_holds": share(same, "rate_held"),
            "bounds_hold": share(same, "held"),
            **{name: mean(same, name) for name in ("true", "rate", "at_least", "at_most")},
            "width": f"{float(mean(same, 'at_most')) - float(mean(same, 'at_least')):.3f}",
        }
        for protocol, same in (*kinds, ("all", told))
        if same
    ]


if __name__ == "__main__":
    start(main)
