"""The first 2000 images of Flickr8k with grid features, validated on 200 images."""

from experiments.benchmark.rows import CLOSED_FORM, DEEP, ROWS
from experiments.benchmark.suite import Grid, Row, Suite
from experiments.judging.crossfit import DEV_IMAGES

_RECIPE = {"method": "infonce", "model.head": "linear"}
LINEAR = (*CLOSED_FORM, "recipe linear", "recipe linear x2")
_SEEDS = (0, 1, 2)

SUITE = Suite(
    config="flickr8k",
    rows={
        **ROWS,
        "recipe linear": Row(_RECIPE, "crossfit", config="recipes:linear"),
        "recipe linear x2": Row(_RECIPE, "crossfit", config="recipes:recall"),
    },
    grids=(
        Grid(LINEAR, ("linear",), ("image",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(DEEP, ("aggregate",), ("image",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(DEEP, ("vse",), ("image",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(DEEP, ("omit", "saf"), ("image",), (0.4, 0.8), _SEEDS),
        Grid(LINEAR, ("linear",), ("caption",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(DEEP, ("aggregate",), ("caption",), (0.4, 0.8), _SEEDS),
    ),
    settings={"data.name": "flickr8k", "data.train_images": 2000, "data.dev_images": DEV_IMAGES},
)
