"""Compare what rematching reaches on the vectors of `flickr8k_vectors`, up to a rate of 0.9.

Beside the rows that draw rematched pairs stands the same recipe on the right pairs alone.
"""

from experiments.benchmark.rows import RECIPES, ROWS
from experiments.benchmark.suite import Grid, Suite
from experiments.benchmark.suites.flickr8k_vectors import RECIPE_TRUTH
from experiments.judging.crossfit import DEV_IMAGES

_ROWS = {
    "recipe linear": RECIPES["recipe linear"],
    "recipe truth": RECIPE_TRUTH,
    "cca rematched": ROWS["cca rematched"],
    "infonce rematched": ROWS["infonce rematched"],
}

SUITE = Suite(
    config="flickr8k:vectors",
    rows=_ROWS,
    grids=(Grid(tuple(_ROWS), ("vse",), ("image", "caption"), (0.4, 0.6, 0.8, 0.9), (0, 1, 2)),),
    settings={"data.name": "flickr8k", "data.train_images": 2000, "data.dev_images": DEV_IMAGES},
)
