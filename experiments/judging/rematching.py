"""Judge vectors of Flickr8k with and without the transport plan, and compare with the truth.

python -m experiments.judging.rematching --path=VECTORS --csv=rematching.csv

VECTORS is what `experiments.papers.vectors` writes. Each set takes the first images with one or
five captions, swaps some, and judges them twice: with 0 iterations, by the models that are fitted
to the stored pairs with weights, and with the library's iterations of the plan. `absent` replaces
captions by captions of images that are not in the set. --iterations adds the information after
each number of iterations. --csv keeps the rows that it has, so the command continues where it
stopped.
"""

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from experiments.judging.crossfit import order_score
from experiments.judging.mismatches import mismatched
from experiments.script import add_rows, new_parser, start, values_of
from l2rm_jax.auroc import auroc
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import judge_pairs, transport_em

EACH = 5  # captions of an image in the files


class Set(NamedTuple):
    """Pairs to judge: numbers of images and of captions per image, and how they are swapped."""

    images: int
    captions: int
    protocol: str
    rate: float
    absent: float = 0.0


SETS = (
    *(
        Set(2000, 5, protocol, rate)
        for protocol in ("image", "caption")
        for rate in (0.2, 0.4, 0.6)
    ),
    *(Set(2000, 5, protocol, rate) for protocol in ("image", "caption") for rate in (0.8, 0.9)),
    Set(2000, 5, "image", 0.0),
    Set(2000, 5, "mixed", 0.4),
    Set(2000, 5, "caption", 0.0, absent=0.4),
    Set(2000, 5, "caption", 0.4, absent=0.3),
    *(Set(6000, 1, "caption", rate) for rate in (0.2, 0.8, 0.9)),
    Set(1000, 1, "caption", 0.6),
    *(Set(300, captions, "caption", rate) for captions in (1, 5) for rate in (0.2, 0.6)),
)
BY_ITERATION = (
    Set(2000, 5, "image", 0.9),
    Set(2000, 5, "caption", 0.9),
    Set(6000, 1, "caption", 0.9),
)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", required=True, type=Path, help="directory of vectors")
    parser.add_argument("--seed", type=values_of(int), default=[0], help="seeds, with commas")
    parser.add_argument("--iterations", type=values_of(int), default=[], help="e.g. 1,2,3,6,8")
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    flags = parser.parse_args()
    runs = [(of, n) for of in SETS for n in (0, transport_em.ITERATIONS)]
    runs += [(of, n) for of in BY_ITERATION for n in flags.iterations]
    todo = {
        (*map(str, of), str(seed), str(n)): partial(rows_of, flags.path, of, seed, n)
        for seed in flags.seed
        for of, n in runs
    }
    add_rows(flags.csv, (*Set._fields, "seed", "iterations"), todo)


def rows_of(path: Path, of: Set, seed: int, iterations: int) -> list[dict[str, object]]:
    """Judge a set and compare with the truth."""
    pairs, wrong = make(path, of, seed)
    begin = time.process_time()
    with mock.patch.object(transport_em, "ITERATIONS", iterations):
        judged = judge_pairs(pairs)
    seconds = time.process_time() - begin
    scores = {
        "information": -judged.information,
        "posterior": judged.posterior,
        "order": order_score(judged),
    }
    mixed = 0 < wrong.sum() < len(wrong)
    listed = wrong[judged.order[: judged.list_length]]
    found = {
        **{f"auroc_{k}": auroc(score, wrong) if mixed else np.nan for k, score in scores.items()},
        "true_rate": wrong.mean(),
        "estimate": judged.rate.estimate,
        "low": judged.rate.low,
        "high": judged.rate.high,
        "brier": np.mean((judged.posterior - wrong) ** 2),
        "listed_wrong": listed.mean() if len(listed) else np.nan,
        "cpu_seconds": seconds,
    }
    row = {**of._asdict(), "seed": seed, "iterations": iterations, "listed": len(listed)}
    return [row | {name: f"{value:.4g}" for name, value in found.items()}]


def make(path: Path, of: Set, seed: int) -> tuple[Pairs, np.ndarray]:
    """Return the pairs of a set, and which are mismatched."""
    images, vectors = (np.load(path / f"train_{kind}.npy") for kind in ("ims", "caps"))
    own = np.repeat(np.arange(of.images), of.captions)
    rows = (np.arange(of.images)[:, None] * EACH + np.arange(of.captions)).ravel()
    rng = np.random.default_rng(seed)
    absent = rng.permutation(len(rows))[: int(of.absent * len(rows))]
    rows[absent] = rng.integers(of.images * EACH, len(vectors), len(absent))
    captions = vectors[rows].astype(np.float32)
    stored = mismatched(of.protocol, of.rate, seed, own, captions, ())
    wrong = stored != own
    wrong[absent] = True
    return Pairs(images[: of.images].astype(np.float32), captions, stored), wrong


if __name__ == "__main__":
    start(main)
