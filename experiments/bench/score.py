"""Time to score a test set: python -m experiments.bench.score --images=200 --captions=1000

Every image with every caption, encoders included, as validation and `--mode=evaluate` do it.
"""

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
from experiments.sweep import start
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.models import make_model
from l2rm_jax.parallel import Replicas, products_in
from l2rm_jax.scoring import Scorer


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--images", type=int, default=1000)
    flags.add_argument("--captions", type=int, default=5000, help="a multiple of the images")
    flags.add_argument("--chunk", type=int, help="captions scored at once (the config's default)")
    sizes = flags.parse_args()
    if sizes.captions % sizes.images:
        flags.error("--captions: expected a multiple of --images")
    config, replicas = config_of(sizes), Replicas()
    model = make_model(config.model, VOCABULARY)
    rng = np.random.default_rng(0)
    sample = pairs(rng, 2, sizes)
    init = jax.jit(model.init)
    variables = replicas.replicate(
        init(jax.random.key(0), sample.images, sample.tokens, sample.lengths)
    )
    shape = (sizes.images, sizes.regions, sizes.features)
    features = RegionFeatures.from_array(rng.standard_normal(shape, np.float32), "bench")
    split = dataset(rng, features, sizes.captions, sizes.words)
    scorer = Scorer(model, replicas, config.evaluation.batch_size)
    with products_in(config.precision):
        seconds = measure(lambda: scorer.similarities(variables, split), sizes.repeats)
    rate = sizes.images * sizes.captions / float(np.median(seconds))
    report({"score_s": spread(seconds), "pairs_per_s": rate, **peak_memory()}, sizes)


if __name__ == "__main__":
    start(main)
