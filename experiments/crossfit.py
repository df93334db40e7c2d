"""Judge the pairs of Flickr8k by cross-fitting, and compare with the truth.

python -m experiments.crossfit --path=DIR --images=2000 --protocol=image --rate=0.8 --seed=0
python -m experiments.crossfit --path=DIR --rate=0,0.4,0.6,0.8 --protocol=image,caption \
    --seed=0,1,2,3,4 --csv=FILE

Captions of the first --images training images are swapped by the library's protocols, with --seed
as mismatch.seed. The linear detector then judges every pair without the truth, which only scores
the result. With --in_sample, one model that has seen all pairs judges them instead, for comparison.
--json writes the last judgement, --csv a row for each.
"""

import argparse
import csv
import json
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from experiments.sweep import start
from l2rm_jax import config as defaults
from l2rm_jax.crossfit import (
    Judgement,
    assign_folds,
    caption_vectors,
    evidence_by_fold,
    fit_weighted,
    image_vectors,
    judge,
    judge_pairs,
)
from l2rm_jax.crossfit.histogram import separation
from l2rm_jax.crossfit.information import Similarity
from l2rm_jax.crossfit.linear import cca_similarity
from l2rm_jax.data import PairDataset, load_data

FOLDS = 5
ECE_BINS = 15


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", required=True, type=Path, help="directory of the data")
    parser.add_argument("--images", type=int, default=2000, help="training images, 0 = all")
    parser.add_argument("--protocol", type=_list(str), default=["image"])
    parser.add_argument("--rate", type=_list(float), default=[0.4], help="rates of mismatch")
    parser.add_argument("--seed", type=_list(int), default=[0], help="seeds of the mismatch")
    parser.add_argument("--in_sample", action="store_true", help="judge by a model of these pairs")
    parser.add_argument("--json", type=Path, help="write the last result")
    parser.add_argument("--csv", type=Path, help="write all results")
    flags = parser.parse_args()
    rows = []
    for protocol, rate, seed in product(flags.protocol, flags.rate, flags.seed):
        train = load_train(flags.path, flags.images, protocol, rate, seed)
        result = measure(train, judge_in_sample if flags.in_sample else judge_out_of_fold)
        described = {"images": len(train.images), "protocol": protocol, "asked": rate, "seed": seed}
        row = (described | result).items()
        rows.append({name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row})
        print(*(f"{name} {x}" for name, x in rows[-1].items()))
    if flags.json:
        flags.json.write_text(json.dumps(result))
    if flags.csv:
        with flags.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


def load_train(path: Path, images: int, protocol: str, rate: float, seed: int) -> PairDataset:
    """Return the pairs of the first training images, with a mismatch."""
    config = defaults.default()
    config.data.name, config.data.path, config.data.train_images = "files", str(path), images
    config.mismatch.protocol, config.mismatch.rate, config.mismatch.seed = protocol, rate, seed
    return load_data(config.data, config.mismatch, workdir=None).train


def judge_out_of_fold(train: PairDataset) -> Judgement:
    """Judge the pairs by the linear detector, without the truth."""
    folds = assign_folds(np.arange(len(train.images)), FOLDS, seed=0)
    return judge_pairs(
        image_vectors(train).rows, caption_vectors(train).rows, train.stored_image, folds
    )


def judge_in_sample(train: PairDataset) -> Judgement:
    """Judge the pairs by a CCA that was fitted to all of them, which cross-fitting never does."""
    images, captions, stored = (
        image_vectors(train).rows,
        caption_vectors(train).rows,
        train.stored_image,
    )
    model = fit_weighted(images, captions, stored, np.ones(len(train), np.float32))

    def similarity_of(fold: int, pairs: np.ndarray) -> Similarity:
        return cca_similarity(model, images, captions, stored, pairs)

    rows, everything = np.arange(len(train.images)), np.arange(len(train))
    folds = assign_folds(rows, FOLDS, seed=0)
    return judge(evidence_by_fold(similarity_of, stored, folds, everything, rows, 0), stored)


def measure(
    train: PairDataset, judge_train: Callable[[PairDataset], Judgement]
) -> dict[str, object]:
    """Judge the pairs, then compare with the truth.

    Args:
      train: the pairs.
      judge_train: judges them.

    Returns:
      AUROC of matched against mismatched pairs (None if all are matched), precision of as many of
      the best pairs as there are matched ones, rate of mismatch and its 90% interval, expected
      calibration error of the posterior, level, and the seconds that the judgement took.
    """
    begin = time.perf_counter()
    judged = judge_train(train)
    seconds = time.perf_counter() - begin
    matched, scores = train.matched, judged.information
    best = np.argsort(-scores, kind="stable")[: matched.sum()]
    mixed = 0 < matched.sum() < len(matched)
    return {
        "auroc": separation(scores[matched], scores[~matched]) if mixed else None,
        "precision": float(matched[best].mean()),
        "rate": judged.rate,
        "rate_low": judged.rate_low,
        "rate_high": judged.rate_high,
        "ece": calibration_error(judged.posterior, matched),
        "level": judged.level,
        "seconds": seconds,
    }


def calibration_error(
    posterior: Float[np.ndarray, " pairs"], matched: Bool[np.ndarray, " pairs"]
) -> float:
    """Return the expected calibration error over equal bins of the posterior."""
    bins = np.minimum((posterior * ECE_BINS).astype(int), ECE_BINS - 1)
    gaps = np.bincount(bins, posterior - matched, ECE_BINS)
    return float(np.abs(gaps).sum() / len(posterior))


def _list(kind: Callable) -> Callable[[str], Sequence]:
    return lambda text: [kind(value) for value in text.split(",")]


if __name__ == "__main__":
    start(main)
