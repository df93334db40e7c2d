"""The first 2000 images of Flickr8k with grid features, captions as words, and 200 for validation.

Rows in closed form and the recipes take a minute or two, published methods ten to fifty minutes.
"""

from experiments.benchmark.rows import CLOSED_FORM, PUBLISHED, RECIPES, ROWS
from experiments.benchmark.suite import Grid, Suite
from experiments.judging.crossfit import DEV_IMAGES

LINEAR = (*CLOSED_FORM, *RECIPES)
_SEEDS = (0, 1, 2)

SUITE = Suite(
    config="flickr8k",
    rows={**ROWS, **RECIPES},
    grids=(
        Grid(LINEAR, ("linear",), ("image",), (0.0, 0.2, 0.4, 0.6, 0.8), _SEEDS),
        Grid(PUBLISHED, ("aggregate",), ("image",), (0.4, 0.8), _SEEDS),
    ),
    settings={"data.name": "flickr8k", "data.train_images": 2000, "data.dev_images": DEV_IMAGES},
)
