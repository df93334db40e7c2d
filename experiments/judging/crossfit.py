"""Judge the pairs of Flickr8k by cross-fitting, and compare with the truth.

python -m experiments.judging.crossfit --path=DIR --images=2000 --protocol=image --rate=0.8 --seed=0
python -m experiments.judging.crossfit --path=DIR --rate=0,0.4,0.6,0.8 --protocol=image,caption \
    --seed=0,1,2,3,4 --csv=FILE

Captions of the first --images training images are swapped by the library's protocols, with --seed
as mismatch.seed. The linear detector then judges every pair without the truth, which only scores
the result. With --in_sample, one model that has seen all pairs judges them instead, for comparison.
--csv writes a row for each judgement.

With --detector=METHOD-HEAD, trained models judge instead of the linear detector: one for each of
--folds folds, of --epochs epochs. They are kept in --workdir, and continue if stopped.
`experiments.benchmark` measures the effect of a judgement on training.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from ml_collections import ConfigDict

from experiments.papers.sweep import run_name
from experiments.script import new_parser, start, values_of, write_rows
from l2rm_jax.auroc import auroc
from l2rm_jax.data import TrainPairs, load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.judging import FoldTask, Judgement, Model, Scorer, judge_pairs
from l2rm_jax.judging.linear import cca_similarity
from l2rm_jax.linear import cca
from l2rm_jax.run.config_file import load_config, with_changes
from l2rm_jax.run.detector import open_detector
from l2rm_jax.run.inputs import read_data
from l2rm_jax.train import train

FOLDS = 5
ECE_BINS = 15
DEV_IMAGES = 200  # as in the tables of Flickr8k


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", required=True, type=Path, help="directory of the data")
    parser.add_argument("--images", type=int, default=2000, help="training images, 0 = all")
    parser.add_argument("--protocol", type=values_of(str), default=["image"])
    parser.add_argument("--rate", type=values_of(float), default=[0.4], help="rates of mismatch")
    parser.add_argument("--seed", type=values_of(int), default=[0], help="seeds of the mismatch")
    parser.add_argument("--in_sample", action="store_true", help="judge by a model of these pairs")
    parser.add_argument("--detector", metavar="METHOD-HEAD", help="what judges the pairs")
    parser.add_argument("--folds", type=int, default=FOLDS, help="of --detector")
    parser.add_argument("--epochs", type=int, default=10, help="of --detector, after no warm-up")
    parser.add_argument("--workdir", type=Path, default=Path("runs/crossfit"), help="of --detector")
    parser.add_argument("--csv", type=Path, help="write all results")
    flags = parser.parse_args()
    if flags.detector and flags.in_sample:
        parser.error("--detector: expected without --in_sample")
    rows = []
    for protocol, rate, seed in product(flags.protocol, flags.rate, flags.seed):
        config = make_config(flags.path, flags.images, protocol, rate, seed)
        train_set = load_train(config)
        judge_train = judge_in_sample if flags.in_sample else judge_out_of_fold
        if flags.detector:
            sizes = {"judgement.folds": flags.folds, "train.epochs": flags.epochs}
            changes = {**sizes, "judgement.detector": flags.detector}
            config = with_changes(config, changes)
            judge_train = partial(judge_by_detector, flags.workdir)
        result = measure(config, train_set, judge_train)
        described = {
            "images": len(train_set.images),
            "protocol": protocol,
            "asked": rate,
            "seed": seed,
        }
        row = (described | result).items()
        rows.append({name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row})
        print(*(f"{name} {x}" for name, x in rows[-1].items()))
    if flags.csv:
        write_rows(flags.csv, rows)


def make_config(path: Path, images: int, protocol: str, rate: float, seed: int) -> ConfigDict:
    """Return the config of Flickr8k with a mismatch."""
    changes = {
        "data.name": "flickr8k",
        "data.path": str(path),
        "data.train_images": images,
        "mismatch.protocol": protocol,
        "mismatch.rate": rate,
        "mismatch.seed": seed,
        "seed": seed,
    }
    return with_changes(load_config("flickr8k"), changes)


def load_train(config: ConfigDict) -> TrainPairs:
    """Return the training pairs."""
    return load_data(config.data, config.mismatch, workdir=None).train


def judge_out_of_fold(config: ConfigDict, train: TrainPairs) -> Judgement:
    """Judge the pairs by the linear detector, without the truth."""
    return judge_pairs(train.to_judge, folds=FOLDS)


def judge_by_detector(out: Path, config: ConfigDict, _: TrainPairs) -> Judgement:
    """Judge the pairs by models that are trained without their fold.

    Args:
      out: directory of the run's own directory.
      config: config of the data, with the detector.
    """
    uses = {"method": "infonce", "train.draw": "judgement", "data.dev_images": DEV_IMAGES}
    config = with_changes(config, {**uses, "train.warmup_epochs": 0})
    names = ("data.train_images", "judgement.detector", "judgement.folds", "train.epochs")
    workdir = out / run_name(config, names)
    data = read_data(config, workdir)
    runs = {"workdir": workdir, "replicas": Replicas(), "train": train}
    with open_detector(config, data, 0, **runs) as detector:
        pairs, name = data.train.to_judge, config.judgement.detector
        return judge_pairs(pairs, detector, name=name, folds=config.judgement.folds)


def judge_in_sample(config: ConfigDict, train: TrainPairs) -> Judgement:
    """Judge the pairs by a CCA that was fitted to all of them, which judging never does."""

    def detect(task: FoldTask) -> Scorer:
        images, captions, stored = task.pairs.images, task.pairs.captions, task.pairs.image_of
        weights, every = np.ones((1, len(stored)), np.float32), np.arange(len(stored))
        [moments] = cca.moments(images, captions, stored, every, weights)
        model = cca.fit(moments, images.shape[1], cca.Ridge(1, 1))
        similarity = cca_similarity(model, images, captions)
        return Scorer("in sample", lambda _: Model(similarity))

    return judge_pairs(train.to_judge, detect, name="in sample", folds=FOLDS)


def measure(
    config: ConfigDict,
    train: TrainPairs,
    judge_train: Callable[[ConfigDict, TrainPairs], Judgement],
) -> dict[str, object]:
    """Judge the pairs, then compare with the truth.

    Args:
      config: config of the pairs.
      train: the pairs.
      judge_train: judges them.

    Returns:
      AUROC of matched against mismatched pairs (None if all are matched), precision of as many of
      the best pairs as there are matched ones, rate of mismatch and its 90% interval, expected
      calibration error of the posterior, and the seconds that the judgement took.
    """
    begin = time.perf_counter()
    judged = judge_train(config, train)
    seconds = time.perf_counter() - begin
    matched = train.matched
    best = judged.order[::-1][: matched.sum()]
    mixed = 0 < matched.sum() < len(matched)
    return {
        "auroc": auroc(order_score(judged), ~matched) if mixed else None,
        "precision": float(matched[best].mean()),
        "rate": judged.rate.estimate,
        "rate_low": judged.rate.low,
        "rate_high": judged.rate.high,
        "ece": calibration_error(judged.posterior, ~matched),
        "seconds": seconds,
    }


def order_score(judged: Judgement) -> Float[np.ndarray, " pairs"]:
    """Return the order of the pairs as a score, the most suspicious pair highest."""
    score = np.empty(len(judged))
    score[judged.order] = np.arange(len(judged), 0, -1)
    return score


def calibration_error(
    posterior: Float[np.ndarray, " pairs"], mismatched: Bool[np.ndarray, " pairs"]
) -> float:
    """Return the expected calibration error over equal bins of the posterior."""
    bins = np.minimum((posterior * ECE_BINS).astype(int), ECE_BINS - 1)
    gaps = np.bincount(bins, posterior - mismatched, ECE_BINS)
    return float(np.abs(gaps).sum() / len(posterior))


if __name__ == "__main__":
    start(main)
