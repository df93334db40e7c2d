"""Measure false alarms of a kept judge over splits of Flickr8k into a reference and new pairs.

python -m experiments.judging.splits --path=FLICKR8K --rated=RATED --vectors=VECTORS \\
    --encoder=BERT_DIR --csv=splits.csv --summary=splits_summary.csv

Directories as in `experiments.judging.rated`. Each split draws 1000 new images, and a reference
from the others, in which some captions may be swapped (`experiments.judging.mismatches`). Columns:
the share of the new matched pairs at or below some p-values; and, where a share of the new pairs is
swapped among similar images (`hard`), or of the rated images' own pairs replaced by pairs rated 2
or lower, the share of false alarms in the list with a false discovery rate of 0.1, and the share of
the mismatched pairs in it. --summary has means over the splits.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.judging.known_rates import SPLITS
from experiments.judging.mismatches import mismatched
from experiments.judging.rated import EACH, Rated, keep, load_rated, mixed, rated_parser, score
from experiments.script import add_rows, means, rows_by, start, write_rows
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging.kept_judge import KeptJudge
from l2rm_jax.judging.posterior import FALSE_ALARMS
from l2rm_jax.judging.reference import q_values

NEW = 1000  # images
REFERENCES = (
    (1000, "caption", 0.0),
    (2000, "caption", 0.4),
    (2000, "hard", 0.2),
    (6000, "caption", 0.0),
)
LEVELS, SHARES, RATED = (0.05, 0.2), (0.1, 0.3), 2.0


class Cell(NamedTuple):
    """Images and swaps of a reference, and the number of a split; the first columns of its row."""

    reference: int
    protocol: str
    rate: float
    split: int


class Vectors(NamedTuple):
    """Vectors of all images of Flickr8k, and its captions, five per image in order."""

    images: np.ndarray
    captions: np.ndarray
    texts: list[str]

    def pairs(self, rows: np.ndarray, protocol: str, rate: float, seed: int) -> Pairs:
        """Return some images with their captions, of which a share is swapped."""
        of_rows = (rows[:, None] * EACH + np.arange(EACH)).ravel()
        own, captions = np.repeat(np.arange(len(rows)), EACH), self.captions[of_rows]
        texts = [self.texts[row] for row in of_rows]
        stored = mismatched(protocol, rate, seed, own, captions, texts) if rate else own
        return Pairs(self.images[rows], captions, stored)


def main() -> None:
    parser = rated_parser(__doc__)
    parser.add_argument("--splits", type=int, default=8, help="number of splits [8]")
    parser.add_argument("--summary", type=Path, help="also means over the splits")
    flags = parser.parse_args()
    rated = load_rated(flags.path, flags.rated, flags.encoder)
    vectors = load_vectors(flags.vectors)
    cells = [Cell(*of, split) for of in REFERENCES for split in range(flags.splits)]
    todo = {cell: partial(measure, cell, vectors, rated) for cell in cells}
    rows = add_rows(flags.csv, Cell._fields, todo)
    if flags.summary:
        write_rows(flags.summary, summary(rows))


def load_vectors(path: Path) -> Vectors:
    """Return vectors and texts of all splits."""
    splits = "train", *SPLITS
    images, captions = (
        np.concatenate([np.load(path / f"{name}_{side}.npy") for name in splits])
        for side in ("ims", "caps")
    )
    texts = [text for name in splits for text in read_captions(path, name)]
    return Vectors(images.astype(np.float32), captions.astype(np.float32), texts)


def measure(cell: Cell, vectors: Vectors, rated: Rated) -> list[dict[str, object]]:
    """Measure one split; return its only row."""
    drawn = np.random.default_rng(cell.split).permutation(len(vectors.images))
    new, rows = np.sort(drawn[:NEW]), np.sort(drawn[NEW : NEW + cell.reference])
    judge = keep(vectors.pairs(rows, cell.protocol, cell.rate, cell.split))
    judge = judge._replace(witnesses=None)
    values = false_alarms(judge, vectors.pairs(new, "hard", 0, cell.split))
    for share in SHARES:
        pairs = vectors.pairs(new, "hard", share, cell.split)
        wrong = pairs.image_of != np.repeat(np.arange(NEW), EACH)
        values |= of_list(f"hard {share}", judge.score(pairs).p, wrong)
        image, caption, mean = mixed(rated, share, cell.split, RATED)
        values |= of_list(f"rated {share}", score(judge, rated, image, caption).p, mean <= RATED)
    return [cell._asdict() | {name: f"{value:.4f}" for name, value in values.items()}]


def false_alarms(judge: KeptJudge, pairs: Pairs) -> dict[str, float]:
    """Return the share of matched pairs at or below some p-values."""
    p = judge.score(pairs).p
    return {f"at {level}": float((p <= level).mean()) for level in LEVELS}


def of_list(name: str, p: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Return the share of false alarms in a list, and of the mismatched pairs in it."""
    listed = q_values(p) <= FALSE_ALARMS
    false, found = (listed & ~wrong).sum() / max(listed.sum(), 1), listed[wrong].mean()
    return {f"{name}: false": float(false), f"{name}: found": float(found)}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return means over the splits for each reference."""
    names = [name for name in rows[0] if name not in Cell._fields]
    return [
        dict(zip(Cell._fields, kind, strict=False)) | {"splits": len(same)} | means(same, names)
        for kind, same in rows_by(rows, Cell._fields[:-1]).items()
    ]


if __name__ == "__main__":
    start(main)
