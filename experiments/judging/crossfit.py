"""Judge the pairs of Flickr8k by cross-fitting, and compare with the truth.

python -m experiments.judging.crossfit --path=DIR --images=2000 --protocol=image --rate=0.8 --seed=0
python -m experiments.judging.crossfit --path=DIR --rate=0,0.4,0.6,0.8 --protocol=image,caption \
    --seed=0,1,2,3,4 --csv=FILE

Captions of the first --images training images are swapped by the library's protocols, with --seed
as mismatch.seed. The linear detector then judges every pair without the truth, which only scores
the result. With --in_sample, one model that has seen all pairs judges them instead, for comparison.
--json writes the last judgement, --csv a row for each.

With --train=METHOD-HEAD, as --train=infonce-aggregate, a model is then trained with the judgement:
l2rm and rcsl_nc split by it, cca weights by it, and others train on the pairs above a posterior of
0.5. Epochs are more where fewer pairs are kept, so that the updates are about as many as on all
pairs. With --draw=rematched, cca also takes doubted pairs, combined anew; --train=infonce-linear
trains its model further, as the config recipes:linear. The results have its rSum too: of the best
epoch on the first 200 validation images, and of that model on the test images. Runs are kept in
--workdir, and continue if stopped.

With --detector=METHOD-HEAD, trained models judge in place of the linear detector: one for each of
--folds folds, of --epochs epochs. They are kept in --workdir too.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from ml_collections import ConfigDict

from experiments.csv_rows import write_rows
from experiments.papers.sweep import run_name, start
from l2rm_jax.data import PairDataset, load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.evaluation.auroc import auroc
from l2rm_jax.judging import Judgement, Model, Scorer, Task, judge_pairs
from l2rm_jax.judging.linear import cca_similarity, fit_weighted
from l2rm_jax.methods import METHODS, make_method
from l2rm_jax.models import HEADS, make_model
from l2rm_jax.run.config_file import load_config, with_changes
from l2rm_jax.run.detector import open_detector
from l2rm_jax.run.draws import DRAWS
from l2rm_jax.run.inputs import read_data
from l2rm_jax.run.judged_pairs import judged_pairs
from l2rm_jax.train import train

FOLDS = 5
ECE_BINS = 15
DEV_IMAGES = 200  # as in the tables of Flickr8k
LINEAR = ("cca", "linear"), ("infonce", "linear")  # values of --train that take --draw
KEPT = {"data.filter": "crossfit", "data.filter_value": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", required=True, type=Path, help="directory of the data")
    parser.add_argument("--images", type=int, default=2000, help="training images, 0 = all")
    parser.add_argument("--protocol", type=values_of(str), default=["image"])
    parser.add_argument("--rate", type=values_of(float), default=[0.4], help="rates of mismatch")
    parser.add_argument("--seed", type=values_of(int), default=[0], help="seeds of the mismatch")
    parser.add_argument("--in_sample", action="store_true", help="judge by a model of these pairs")
    parser.add_argument("--train", type=_method_and_head, metavar="METHOD-HEAD")
    parser.add_argument("--draw", type=values_of(_draw), help="of a linear --train: train.draw")
    parser.add_argument("--detector", metavar="METHOD-HEAD", help="what judges the pairs")
    parser.add_argument("--folds", type=int, default=FOLDS, help="of --detector")
    parser.add_argument("--epochs", type=int, default=10, help="of --detector, after no warm-up")
    parser.add_argument(
        "--workdir", type=Path, default=Path("runs/crossfit"), help="of --train and --detector"
    )
    parser.add_argument("--json", type=Path, help="write the last result")
    parser.add_argument("--csv", type=Path, help="write all results")
    flags = parser.parse_args()
    if flags.detector and (flags.train or flags.in_sample):
        parser.error("--detector: expected without --train and --in_sample")
    draws = flags.train in LINEAR
    if flags.draw and not draws:
        names = " or ".join("-".join(names) for names in LINEAR)
        parser.error(f"--draw: expected with --train={names}")
    name = "recipes:linear" if flags.train == ("infonce", "linear") else "flickr8k"
    rows = []
    cells = product(flags.protocol, flags.rate, flags.seed, flags.draw or ["posterior"])
    for protocol, rate, seed, draw in cells:
        config = make_config(flags.path, flags.images, protocol, rate, seed, name)
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
        if draws:
            described["method"], described["draw"] = flags.train[0], draw
            config.train.draw = draw
        if flags.train:
            result |= train_with_judgement(config, *flags.train, result["rate"], flags.workdir)
        row = (described | result).items()
        rows.append({name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row})
        print(*(f"{name} {x}" for name, x in rows[-1].items()))
    if flags.json:
        flags.json.write_text(json.dumps(result))
    if flags.csv:
        write_rows(flags.csv, rows)


def make_config(
    path: Path, images: int, protocol: str, rate: float, seed: int, name: str = "flickr8k"
) -> ConfigDict:
    """Return the config of Flickr8k, or a variant of it, with a mismatch."""
    changes = {
        "data.name": "flickr8k",
        "data.path": str(path),
        "data.train_images": images,
        "mismatch.protocol": protocol,
        "mismatch.rate": rate,
        "mismatch.seed": seed,
        "seed": seed,
    }
    return with_changes(load_config(name), changes)


def load_train(config: ConfigDict) -> PairDataset:
    """Return the training pairs."""
    return load_data(config.data, config.mismatch, workdir=None).train


def train_with_judgement(
    config: ConfigDict, method: str, head: str, rate: float, out: Path
) -> dict[str, float]:
    """Train with the posterior of cross-fitting.

    Args:
      config: config of the data; for a fit in closed form, with the field `train.draw`.
      method: method to train.
      head: head to train.
      rate: estimated rate of mismatch; a method without a split trains longer by it.
      out: directory of the run's own directory.

    Returns:
      rSum on validation and test images.
    """
    named = {"method": method, "model.head": head}
    sizes = {"judgement.folds": FOLDS, "data.dev_images": DEV_IMAGES}
    config = with_changes(config, {**named, **sizes})
    names = ["data.train_images"]
    if (method, head) in LINEAR:
        use = {}
        names.append("train.draw")
    elif make_method(make_model(config, 0), config).splits:
        use = {"split.by": "crossfit"}
    else:
        use = {**KEPT, **equal_updates(config, 1 - rate)}
    config = with_changes(config, use)
    results = train(config, out / run_name(config, names))
    return {"validation": results["best_validation_rsum"], "test": results["rsum"]}


def equal_updates(config: ConfigDict, kept: float) -> dict[str, int]:
    """Return epochs with which a share of the pairs is trained on as often as all are."""
    warmup = round(config.train.warmup_epochs / kept)
    total = int((config.train.warmup_epochs + config.train.epochs) / kept)
    return {
        "train.warmup_epochs": warmup,
        "train.epochs": total - warmup,
        "optim.decay_epochs": round(config.optim.decay_epochs / kept),
    }


def judge_out_of_fold(config: ConfigDict, train: PairDataset) -> Judgement:
    """Judge the pairs by the linear detector, without the truth."""
    return judge_pairs(judged_pairs(config.data, train), folds=FOLDS)


def judge_by_detector(out: Path, config: ConfigDict, _: PairDataset) -> Judgement:
    """Judge the pairs by models that are trained without their fold.

    Args:
      out: directory of the run's own directory.
      config: config of the data, with the detector.
    """
    uses = {"method": "infonce", "train.draw": "posterior", "data.dev_images": DEV_IMAGES}
    config = with_changes(config, {**uses, "train.warmup_epochs": 0})
    names = ("data.train_images", "judgement.detector", "judgement.folds", "train.epochs")
    workdir = out / run_name(config, names)
    data = read_data(config, workdir)
    runs = {"workdir": workdir, "replicas": Replicas(), "train": train}
    with open_detector(config, data, 0, **runs) as detector:
        pairs, name = judged_pairs(config.data, data.train), config.judgement.detector
        return judge_pairs(pairs, detector, name=name, folds=config.judgement.folds)


def judge_in_sample(config: ConfigDict, train: PairDataset) -> Judgement:
    """Judge the pairs by a CCA that was fitted to all of them, which judging never does."""

    def detect(task: Task) -> Scorer:
        images, captions, stored, *_ = task.pairs
        model = fit_weighted(images, captions, stored, np.ones(len(stored), np.float32))
        similarity = cca_similarity(model, images, captions)
        return Scorer("in sample", lambda _: Model(similarity))

    return judge_pairs(judged_pairs(config.data, train), detect, name="in sample", folds=FOLDS)


def measure(
    config: ConfigDict,
    train: PairDataset,
    judge_train: Callable[[ConfigDict, PairDataset], Judgement],
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
    matched, doubt = train.matched, np.empty(len(train))
    doubt[judged.order] = np.arange(len(train), 0, -1)
    best = judged.order[::-1][: matched.sum()]
    mixed = 0 < matched.sum() < len(matched)
    return {
        "auroc": auroc(doubt, ~matched) if mixed else None,
        "precision": float(matched[best].mean()),
        "rate": judged.rate.estimate,
        "rate_low": judged.rate.low,
        "rate_high": judged.rate.high,
        "ece": calibration_error(judged.posterior, ~matched),
        "seconds": seconds,
    }


def calibration_error(
    posterior: Float[np.ndarray, " pairs"], mismatched: Bool[np.ndarray, " pairs"]
) -> float:
    """Return the expected calibration error over equal bins of the posterior."""
    bins = np.minimum((posterior * ECE_BINS).astype(int), ECE_BINS - 1)
    gaps = np.bincount(bins, posterior - mismatched, ECE_BINS)
    return float(np.abs(gaps).sum() / len(posterior))


def _method_and_head(text: str) -> Sequence[str]:
    method, _, head = text.partition("-")
    if method not in METHODS or head not in HEADS:
        raise argparse.ArgumentTypeError(
            f"{text}: expected METHOD-HEAD with one of {', '.join(METHODS)} and of "
            f"{', '.join(HEADS)}"
        )
    return method, head


def _draw(text: str) -> str:
    if text not in DRAWS:
        raise argparse.ArgumentTypeError(f"{text}: expected one of {', '.join(DRAWS)}")
    return text


def values_of(kind: Callable) -> Callable[[str], Sequence]:
    """Return a function that reads values between commas."""
    return lambda text: [kind(value) for value in text.split(",")]


if __name__ == "__main__":
    start(main)
