"""Time to score a test set: python -m experiments.bench.score --images=200 --captions=1000

Scores every image with every caption, encoders included, as validation and `l2rm evaluate` do.
"""

import argparse
from collections.abc import Callable

import jax
import numpy as np

from experiments.bench.measure import (
    VOCABULARY,
    config_of,
    dataset,
    measure,
    pairs,
    parser,
    peak_memory,
    report,
    spread,
)
from experiments.script import start
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.parallel import Replicas, matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.models import make_model


def flags(description: str | None = __doc__) -> argparse.ArgumentParser:
    """Return a parser with the flags of a benchmark that scores."""
    flags = parser(description)
    flags.add_argument("--images", type=int, default=1000)
    flags.add_argument("--captions", type=int, default=5000, help="a multiple of the images")
    flags.add_argument("--chunk", type=int, help="captions scored at once (default: the config's)")
    return flags


def main() -> None:
    sizes = flags().parse_args()
    score = prepare(sizes, test_set(sizes))
    with matmul_precision(sizes.precision):
        seconds = measure(score, sizes.repeats)
    rate = sizes.images * sizes.captions / float(np.median(seconds))
    report({"score_s": spread(seconds), "pairs_per_s": rate, **peak_memory()}, sizes)


def test_set(sizes: argparse.Namespace) -> TrainPairs:
    """Return a random split with the sizes of a benchmark.

    Raises:
      ConfigError: the number of captions is not a multiple of the images.
    """
    if sizes.captions % sizes.images:
        raise ConfigError(
            f"--captions: found {sizes.captions}, expected a multiple of --images={sizes.images}"
        )
    rng = np.random.default_rng(0)
    shape = (sizes.images, sizes.regions, sizes.features)
    features = RegionFeatures.from_array(rng.standard_normal(shape, np.float32), "bench")
    return dataset(rng, features, sizes.captions, sizes.words)


def prepare(sizes: argparse.Namespace, split: TrainPairs) -> Callable[[], np.ndarray]:
    """Return a function that scores `split` with a model of the benchmark's sizes."""
    config, replicas = config_of(sizes), Replicas()
    model = make_model(config, VOCABULARY)
    sample = pairs(np.random.default_rng(0), 2, sizes)
    variables = replicas.replicate(jax.jit(model.init)(jax.random.key(0), sample))
    scorer = Scorer(model, replicas, config.evaluation.batch_size)
    return lambda: scorer.similarities(variables, split)


if __name__ == "__main__":
    start(main)
