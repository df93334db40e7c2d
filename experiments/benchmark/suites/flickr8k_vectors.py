"""The first 2000 images of Flickr8k as frozen vectors, which `experiments.papers.vectors` writes.

A run takes ten to thirty seconds on one core. Every method has its own split and the one of
cross-fitting; those of two networks are trained with one, too.
"""

from experiments.benchmark.rows import CLOSED_FORM, DEEP, KEPT, RECIPE, RECIPES, ROWS
from experiments.benchmark.suite import Grid, Row, Suite
from experiments.judging.crossfit import DEV_IMAGES

_ONE = {
    f"{method} x1": Row({"method": method, "train.networks": 1}, "loss")
    for method in ("ncr", "bicro", "sps", "cream")
}
# Methods without a split train on the pairs that cross-fitting keeps.
_KEPT = {
    f"{method} kept": Row({**ROWS[method].changes, **KEPT}, "crossfit", drops=True)
    for method in ("triplet", "rcl", "crcl")
}
RECIPE_TRUTH = Row(
    {**RECIPE, "train.draw": "even", "data.filter": "truth"}, "truth", config="recipes:linear"
)
_RECIPES = {
    **RECIPES,
    "recipe unjudged": Row({**RECIPE, "train.draw": "even"}, config="recipes:linear"),
    "recipe truth": RECIPE_TRUTH,
}
EVERY = (*CLOSED_FORM, *_RECIPES, *DEEP, *_KEPT, *_ONE)

SUITE = Suite(
    config="flickr8k:vectors",
    rows={**ROWS, **_KEPT, **_ONE, **_RECIPES},
    grids=(
        Grid(EVERY, ("vse",), ("image",), (0.4, 0.8), (0, 1, 2, 3, 4)),
        Grid(EVERY, ("vse",), ("image",), (0.0, 0.2, 0.6), (0, 1, 2)),
        Grid(EVERY, ("vse",), ("caption",), (0.4, 0.8), (0, 1, 2)),
    ),
    settings={"data.name": "flickr8k", "data.train_images": 2000, "data.dev_images": DEV_IMAGES},
)
