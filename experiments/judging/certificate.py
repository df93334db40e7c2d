"""Measure certificates of the kept pairs: how much they certify, and how often they hold.

python -m experiments.judging.certificate --path=DIR --csv=certificate.csv \\
    --summary=certificate_summary.csv

Audits of 2000 images of Flickr8k with five captions each, whose DIR has train_minilm.npy: other
images for each seed, mismatched on purpose (`experiments.judging.mismatches`). Someone who knows
the truth reviews each audit 400 times, for each size of the review and each share to certify. A
certificate holds if no more than this share of its set is wrong; a review without one holds too.
--csv keeps the audits that it has, so the command continues where it stopped; it may also have rows
of `experiments.judging.rated`. --summary has a row per kind of data: the certified share of all
pairs by share and size of the review, as means over the seeds, and the least coverage of all cells.
"""

from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from experiments.judging.audit import Vectors, load_vectors
from experiments.judging.mismatches import mismatched
from experiments.script import add_rows, means, new_parser, rows_by, start, write_rows
from l2rm_jax.audit.certificate import certify, draw_sample, rank_kept
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import judge_pairs

IMAGES, EACH = 2000, 5
DATA = ("caption", 0.2), ("image", 0.1), ("hard", 0.05), ("noun", 0.2), ("hard", 0.2)
REVIEWS = 400
ASKED = {0.05: (133, 267, 533), 0.1: (133, 267, 533), 0.02: (304, 533)}  # pairs of a review


class Cell(NamedTuple):
    """Settings of one audit; the first columns of its rows."""

    protocol: str
    rate: float
    seed: int


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", type=Path, help="directory of Flickr8k; without it, no audits")
    parser.add_argument("--seeds", type=int, default=3, help="at most 3, as there are 6000 images")
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    parser.add_argument("--summary", type=Path, help="also means over the seeds")
    flags = parser.parse_args()
    vectors = load_vectors(flags.path, 0) if flags.path else None
    cells = [Cell(*data, seed) for seed, data in product(range(flags.seeds), DATA)]
    todo = {cell: partial(measure, cell, vectors) for cell in cells} if vectors else {}
    rows = add_rows(flags.csv, Cell._fields, todo)
    if flags.summary:
        write_rows(flags.summary, summary(rows))


def measure(cell: Cell, vectors: Vectors) -> list[dict[str, object]]:
    """Audit one cell; return a row for each share and size of the review."""
    first = cell.seed * IMAGES
    rows = np.arange(EACH * first, EACH * (first + IMAGES))
    own, captions = vectors.caption_image[rows] - first, vectors.captions["minilm"][rows]
    texts = [vectors.texts[row] for row in rows]
    stored = mismatched(cell.protocol, cell.rate, cell.seed, own, captions, texts)
    images, words = vectors.images[first : first + IMAGES], vectors.captions["tfidf"][rows]
    found = judge_pairs(Pairs(images, captions, stored, words=words), seed=cell.seed)
    return rows_of(cell, rank_kept(found.order, found.kind), stored != own)


def rows_of(
    cell: Cell, ranked: Int[np.ndarray, " kept"], wrong: Bool[np.ndarray, " pairs"]
) -> list[dict[str, object]]:
    """Review an audit; return a row for each share and size of the review (see `reviews`)."""
    sizes = [(share, decide) for share, sizes in ASKED.items() for decide in sizes]
    return [
        cell._asdict() | {"share": share, "decide": decide} | reviews(ranked, wrong, share, decide)
        for share, decide in sizes
    ]


def reviews(
    ranked: Int[np.ndarray, " kept"], wrong: Bool[np.ndarray, " pairs"], share: float, decide: int
) -> dict[str, object]:
    """Review an audit many times, each time with another sample.

    Args:
      ranked: the kept pairs, the least suspicious one first.
      wrong: whether each pair is mismatched.
      share: share of wrong pairs to certify.
      decide: pairs of a review.
    """
    share_wrong = np.cumsum(wrong[ranked]) / np.arange(1, len(ranked) + 1)
    pairs = []
    for seed in range(REVIEWS):
        rows, _ = draw_sample(ranked, len(wrong), decide, share, seed)
        pairs.append(certify(ranked, rows, wrong[rows], share).pairs)
    sets = np.array(pairs)
    true = np.where(sets > 0, share_wrong[sets - 1], 0)
    possible = np.flatnonzero(share_wrong <= share)
    return {
        "possible": f"{(possible[-1] + 1 if len(possible) else 0) / len(wrong):.4f}",
        "certified": f"{sets.mean() / len(wrong):.4f}",
        "given": f"{np.mean(sets > 0):.4f}",
        "wrong": f"{true[sets > 0].mean() if sets.any() else 0:.4f}",
        "holds": f"{np.mean(true <= share):.4f}",
    }


def summary(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """A row per kind of data: mean shares of all pairs by share and size; least coverage."""

    def mean(same: list[dict[str, object]], name: str, **cell: object) -> str:
        own = rows_by(same, list(cell))[tuple(map(str, cell.values()))]
        return means(own, [name], digits=2)[name]

    return [
        {"protocol": protocol, "rate": rate, "audits": len({str(row["seed"]) for row in same})}
        | {"possible at 5%": mean(same, "possible", share=0.05)}
        | {
            f"{100 * share:g}%: {decide}": mean(same, "certified", share=share, decide=decide)
            for share, sizes in ASKED.items()
            for decide in sizes
        }
        | {"holds": f"{min(float(row['holds']) for row in same):.2f}"}
        for (protocol, rate), same in rows_by(rows, ("protocol", "rate")).items()
    ]


if __name__ == "__main__":
    start(main)
