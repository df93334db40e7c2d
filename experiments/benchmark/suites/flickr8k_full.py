"""All 6000 training images of Flickr8k with grid features, for the leading methods."""

from experiments.benchmark.suite import Grid, Suite
from experiments.benchmark.suites import flickr8k

_LEADING = ("infonce", "infonce kept", "l2rm", "l2rm crossfit", "sps")
_RATES, _SEEDS = (0.4, 0.6, 0.8), (0, 1, 2)

SUITE = Suite(
    config="flickr8k",
    rows=flickr8k.SUITE.rows,
    grids=(
        Grid(flickr8k.LINEAR, ("linear",), ("image",), _RATES, _SEEDS),
        Grid(_LEADING, ("aggregate",), ("image",), _RATES, _SEEDS),
    ),
    settings={"data.name": "flickr8k", "data.train_images": 0},
)
