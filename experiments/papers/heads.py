"""OMIT and its rivals on Flickr8k with grid features, as in OMIT Tab. 3, 4 and Fig. 3.

python -m experiments.papers.heads --path=DIR --out=runs/heads --vary seed=0,1,2
python -m experiments.papers.heads --path=DIR --out=runs/heads --only=table \
    --set data.train_images=0
python -m experiments.papers.heads --out=runs/heads --report

Every variant is trained on clean pairs with OMIT's recipe (triplet loss, one epoch without hard
negatives, random regions and words left out) at the sizes of configs/flickr8k.py. The grid stops
and continues like `experiments.papers.sweep`. --only takes `table` (Tab. 3 and 4), `lambda` or
`margins`. --report trains nothing and prints the finished runs: a row is the mean of runs that
differ only in their seed, and it names the other config fields in which the runs differ. The column
`seconds` is the time to match 500 images of 36 regions with 2500 captions of 16 words on one device
of this machine, once all are encoded. It matches as evaluation does: a head that is one matrix
product pools each image and each caption once.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.papers.runs import RECALLS, SEEDS
from experiments.papers.sweep import (
    add_settings,
    grid,
    load_config,
    run_grid,
    start,
    with_changes,
)
from l2rm_jax.config import flat
from l2rm_jax.errors import ConfigError
from l2rm_jax.models import make_model

CONFIG = Path(__file__).parents[2] / "configs" / "flickr8k.py"
RECIPE = {
    "method": "triplet",
    "mismatch.rate": 0.0,
    "model.dropout": 0.0,
    "model.region_mask": 0.2,
    "model.word_noise": 0.2,
    "loss.margin": 0.05,
    "optim.weight_decay": 5e-4,
    "optim.decay_epochs": 9,
    "train.warmup_epochs": 1,
    "train.epochs": 14,
}
SEPARATOR = "--"  # in a directory's name, between the variant and the run's name
# Sizes of the timed matching; both counts are multiples of the tile.
TILE, IMAGES, CAPTIONS = 125, 500, 2500
REGIONS, FEATURES, WORDS, VOCABULARY = 36, 128, 16, 1000

PARTIAL_OT = {"model.head": "omit"}
# Config fields of each variant, on top of the recipe.
VARIANTS = {
    "table": {
        "VSE": {"model.head": "vse"},
        "VSE, GPO": {"model.head": "vse", "model.pooling": "gpo"},
        "PEM": {"model.head": "pem"},
        "CAM": {"model.head": "cam", "model.matching": "naive"},
        "partial CAM": {"model.head": "cam"},
        "naive OT": {**PARTIAL_OT, "model.matching": "naive"},
        "full": {**PARTIAL_OT, "model.matching": "full"},
        "prompt": {**PARTIAL_OT, "model.matching": "prompt"},
        "partial OT": PARTIAL_OT,
    },
    "lambda": {
        f"lambda {value:g}": {**PARTIAL_OT, "model.match_epsilon": value}
        for value in (0.005, 0.01, 0.05, 0.1, 0.5)
    },
    "margins": {
        margins: {**PARTIAL_OT, "model.margins": margins} for margins in ("intra", "inter", "norm")
    },
}
ALL = {name: keys for group in VARIANTS.values() for name, keys in group.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", type=Path, help="directory of the data")
    parser.add_argument("--out", required=True, type=Path, help="directory of the runs")
    parser.add_argument("--only", choices=list(VARIANTS), help="train this group of variants only")
    parser.add_argument("--report", action="store_true", help="only print")
    add_settings(parser, "vary", "set")
    arguments = parser.parse_args()
    if not arguments.report:
        if arguments.path is None:
            raise ConfigError("--path: expected the directory of the data, or --report")
        config = with_changes(load_config(str(CONFIG)), RECIPE)
        config.data.path = str(arguments.path.absolute())
        runs = []
        for name, keys in (VARIANTS[arguments.only] if arguments.only else ALL).items():
            variant = grid(config, arguments.vary, {**arguments.set, **keys})
            runs += [(f"{name}{SEPARATOR}{run}", each) for run, each in variant]
        run_grid(runs, arguments.out)
    print(report(arguments.out))


def report(out: Path) -> str:
    """Return the table of finished runs: mean test recalls over seeds, and seconds of matching.

    Raises:
      ConfigError: no run has finished.
    """
    runs = []
    for file in sorted(out.glob(f"*{SEPARATOR}*/results.json")):
        variant = file.parent.name.partition(SEPARATOR)[0]
        if variant in ALL:
            runs.append((variant, json.loads(file.read_text())))
    if not runs:
        raise ConfigError(f"{out}: no run has finished")
    finished = defaultdict(list)
    for (variant, result), more in zip(runs, _differences(runs), strict=True):
        finished[variant, more].append(result)
    order = sorted(finished, key=lambda key: (list(ALL).index(key[0]), key[1]))
    width = max(14, *(len(variant + more) + 2 for variant, more in order))
    heading = [*RECALLS, "deviation", "runs", "seconds"]
    lines = [f"{'':<{width}}" + "".join(f"{name:>10}" for name in heading)]
    for variant, more in order:
        results = finished[variant, more]
        rows = [next(iter(result["test"].values())) for result in results]
        values = np.array([[row[column] for column in RECALLS] for row in rows])
        deviation = f"{values[:, -1].std(ddof=1):.1f}" if len(rows) > 1 else ""
        seconds = f"{matching_seconds(results[0]['config']):.2f}"
        cells = [*map("{:.1f}".format, values.mean(0)), deviation, str(len(rows)), seconds]
        lines.append(f"{variant + more:<{width}}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def _differences(runs: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the suffix of each run's row name: the config fields in which the runs differ.

    Seeds and the fields that the variant itself sets are left out.
    """
    settings = [
        {
            key: value
            for key, value in flat(result["config"]).items()
            if key not in SEEDS and ALL[variant].get(key) != value
        }
        for variant, result in runs
    ]
    values = defaultdict(set)
    for own in settings:
        for key, value in own.items():
            values[key].add(str(value))
    return [
        "".join(f", {key}={value}" for key, value in own.items() if len(values[key]) > 1)
        for own in settings
    ]


def matching_seconds(config: dict[str, Any]) -> float:
    """Return the seconds to match all images with all captions, encoders not included.

    Matching works as in evaluation: tile by tile or, for a head that is one matrix product, by one
    product of vectors that are pooled once.
    """
    model = make_model(ConfigDict(config), vocabulary_size=VOCABULARY)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(TILE, REGIONS, FEATURES)).astype(np.float32)
    tokens = rng.integers(VOCABULARY, size=(TILE, WORDS))
    lengths = np.full(TILE, WORDS)
    variables = jax.jit(model.init)(jax.random.key(0), images, tokens, lengths)

    def compiled(method: str | Callable) -> Callable:
        function = jax.jit(lambda *inputs: model.apply(*inputs, method=method))
        return partial(function, variables)  # as an argument: constants would be folded

    image_code = compiled("encode_images")(images)
    text_code = compiled("encode_captions")(tokens, lengths)
    match = compiled("similarity")
    pool_images = compiled(lambda model, code: model.similarity_head.embed_images(code))
    pool_texts = compiled(lambda model, code: model.similarity_head.embed_texts(code))

    def match_tiles(image_tiles: int, caption_tiles: int) -> None:
        for _ in range(image_tiles * caption_tiles):
            match(image_code, text_code).block_until_ready()

    def multiply(image_tiles: int, caption_tiles: int) -> None:
        vectors = np.concatenate([pool_images(image_code) for _ in range(image_tiles)])
        texts = np.concatenate([pool_texts(text_code) for _ in range(caption_tiles)])
        vectors @ texts.T

    work = multiply if model.is_product else match_tiles
    work(1, 1)  # compile
    begin = time.perf_counter()
    work(IMAGES // TILE, CAPTIONS // TILE)
    return time.perf_counter() - begin


if __name__ == "__main__":
    start(main)
