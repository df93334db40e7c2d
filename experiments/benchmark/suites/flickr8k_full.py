"""All 6000 training images of Flickr8k with grid features: the rows that start in closed form."""

from experiments.benchmark.suite import Grid, Suite
from experiments.benchmark.suites import flickr8k

SUITE = Suite(
    config="flickr8k",
    rows=flickr8k.SUITE.rows,
    grids=(Grid(flickr8k.LINEAR, ("linear",), ("image",), (0.4, 0.6, 0.8), (0, 1, 2)),),
    settings={"data.name": "flickr8k", "data.train_images": 0},
)
