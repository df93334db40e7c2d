"""Proposals and rematching of doubted pairs: one problem over all of them, or groups.

python -m experiments.judging.whole --path=DIR --doubted=4000,10000 --csv=FILE
python -m experiments.judging.whole --path=DIR --train=0,1,2 --csv=FILE

--path takes Flickr8k, a tenth or two fifths of whose captions are swapped. --doubted takes made-up
pairs, of which this many are swapped, two fifths of all. Their images and captions share 64
directions under so much noise that the audit's AUROC is below 0.99. The audit's own posterior says
which pairs are doubted.

A row of `proposals` says how often a doubted image's true caption is proposed first (`right`) and
among the first five (`found`), counting images one of whose captions is doubted. A row of
`rematching` says which share of the weight goes to true partners (`right`), and which share of the
doubted captions that were swapped has a true partner among them (`found`).

With --train, for each of its seeds the linear model is fitted to all training images of --path, two
fifths of whose captions are swapped, with the pairs rematched in each way; a row has its rSum on
validation and test images.
"""

import argparse
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.csv_rows import write_rows
from experiments.judging.audit import load_vectors
from experiments.judging.crossfit import DEV_IMAGES, make_config, values_of
from experiments.papers.sweep import start
from l2rm_jax.data.mismatch import generate
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.judging import Judgement, Pairs, judge_pairs, proposals, rematch
from l2rm_jax.judging.folds import Folds, assign_folds
from l2rm_jax.judging.pairs import content_keys
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.train import train

RATE, SHARED, DIMENSIONS, NOISE, TOP, FOLDS = 0.4, 64, 256, 18.0, 5, 5
WAYS = {"groups": 0, "whole": 10**9}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", type=Path, help="directory of Flickr8k")
    parser.add_argument("--text", default="tfidf,minilm", help="caption vectors of Flickr8k")
    parser.add_argument("--rate", type=values_of(float), default=[0.1, 0.4])
    parser.add_argument("--doubted", default="", help="numbers of swapped pairs, between commas")
    parser.add_argument("--noise", type=float, default=NOISE)
    parser.add_argument("--train", type=values_of(int), help="seeds of fits to rematched pairs")
    parser.add_argument("--workdir", type=Path, default=Path("runs/whole"), help="of --train")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    flags = parser.parse_args()
    if flags.train:
        rows = [trained(flags, *cell) for cell in product(flags.train, WAYS)]
        if flags.csv:
            write_rows(flags.csv, rows)
        return
    rows = []
    for data, pairs, own in data_sets(flags):
        rows += [{"data": data, **row} for row in measure(pairs, own)]
        if flags.csv:
            write_rows(flags.csv, rows)


def trained(flags: argparse.Namespace, seed: int, way: str) -> dict[str, object]:
    """Fit the linear model with the pairs rematched in this way."""
    sys.modules[rematch.__module__].WHOLE = WAYS[way]
    uses = {"method": "cca", "model.head": "linear", "train.draw": "rematched"}
    config = with_changes(make_config(flags.path, 0, "caption", RATE, seed), uses)
    config.data.dev_images = DEV_IMAGES
    found = train(config, flags.workdir / f"{way}-seed{seed}")
    rsum = {"validation": found["best_validation_rsum"], "test": found["rsum"]}
    row = {"seed": seed, "way": way, **{name: round(value, 1) for name, value in rsum.items()}}
    print(*row.values(), flush=True)
    return row


def data_sets(flags: argparse.Namespace):
    """Yield a name, the pairs and the image that each caption belongs to."""
    for swapped in filter(None, flags.doubted.split(",")):
        yield "synthetic", *made_up(int(swapped), flags.noise)
    if flags.path:
        vectors = load_vectors(flags.path, 0)
        own = vectors.caption_image
        for text in flags.text.split(","):
            for rate in flags.rate:
                captions = vectors.captions[text]
                stored = generate("caption", rate, 0, own, len(vectors.images)).stored_image
                words = None if text == "tfidf" else vectors.captions["tfidf"]
                pairs = Pairs(vectors.images, captions, stored, words)
                yield f"flickr8k {text} {rate}", pairs, own


def made_up(swapped: int, noise: float) -> tuple[Pairs, np.ndarray]:
    """Pairs as in `experiments.bench.audit`, one caption an image, with more noise."""
    rng, count = np.random.default_rng(0), round(swapped / RATE)
    maps = rng.standard_normal((2, SHARED, DIMENSIONS), np.float32)
    shared = rng.standard_normal((count, SHARED), np.float32)
    images, captions = (
        shared @ matrix + noise * rng.standard_normal((count, DIMENSIONS), np.float32)
        for matrix in maps
    )
    own = np.arange(count)
    stored, moved = own.copy(), rng.permutation(count)[:swapped]
    stored[moved] = np.roll(moved, 1)
    return Pairs(images, captions, stored), own


def measure(pairs: Pairs, own: np.ndarray) -> list[dict]:
    """Judge the pairs once; propose and rematch in each way."""
    found = judge_pairs(pairs)
    doubted = found.posterior > SUSPICIOUS
    about = {
        "pairs": len(own),
        "auroc": round(float(found.auroc), 3),
        "doubted": int(doubted.sum()),
        "images": len(np.unique(pairs.pair_image[doubted])),
    }
    rows = []
    for task, compute in (("proposals", proposed), ("rematching", rematched)):
        for way, size in WAYS.items():
            row = {**about, "task": task, "way": way, **compute(pairs, own, found, size)}
            print(*row.values(), flush=True)
            rows.append(row)
    return rows


def proposed(pairs: Pairs, own: np.ndarray, found: Judgement, size: int) -> dict[str, float]:
    """Propose, with problems of at most this size made in blocks."""
    proposals.WHOLE = size
    images, stored = len(pairs.images), pairs.pair_image
    folds = Folds(stored, assign_folds(np.arange(images), FOLDS, 0), np.arange(images))
    doubted, keys = found.posterior > SUSPICIOUS, content_keys(pairs)
    inputs = pairs.images, pairs.captions, folds, keys, doubted, found.posterior_set
    offered, seconds = timed(lambda: proposals.propose(*inputs, TOP, 0))
    right = (own[offered.caption] == stored[:, None]) & (offered.caption >= 0)
    swapped = np.flatnonzero(doubted & (stored != own))
    is_there = np.isin(stored, own[swapped]) & doubted
    first, any_of_five = right[is_there, 0].mean(), right[is_there].any(axis=1).mean()
    return {"right": rounded(first), "found": rounded(any_of_five), **seconds}


def rematched(pairs: Pairs, own: np.ndarray, found: Judgement, size: int) -> dict[str, float]:
    """Rematch, with problems of at most this size made in blocks."""
    sys.modules[rematch.__module__].WHOLE = size
    made, seconds = timed(lambda: rematch(pairs, found.posterior, found.posterior_set))
    right = own[made.caption] == made.image
    share = made.weight[right].sum() / made.weight.sum()
    swapped = np.flatnonzero((found.posterior > SUSPICIOUS) & (pairs.pair_image != own))
    reached = np.isin(swapped, made.caption[right]).mean()
    return {"right": rounded(share), "found": rounded(reached), **seconds}


def timed(compute: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result, and the seconds and CPU seconds that it took, compilation included."""
    began = time.perf_counter(), time.process_time()
    result = compute()
    seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    return result, {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}


def rounded(share: float) -> float:
    return round(float(share), 4)


if __name__ == "__main__":
    start(main)
