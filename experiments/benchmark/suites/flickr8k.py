"""The first 2000 images of Flickr8k with grid features, validated on 200 images."""

from experiments.benchmark.rows import CLOSED_FORM, ROWS
from experiments.benchmark.suite import Grid, Row, Suite
from experiments.crossfit import DEV_IMAGES

_RECIPE = Row({"model.head": "linear", "method": "infonce"}, "crossfit", variant="linear")
_DEEP = tuple(name for name in ROWS if name not in CLOSED_FORM)
_SEEDS = (0, 1, 2)

SUITE = Suite(
    config="flickr8k",
    rows={**ROWS, "linear": _RECIPE},
    grids=(
        Grid((*CLOSED_FORM, "linear"), ("linear",), ("image",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(_DEEP, ("aggregate",), ("image",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(_DEEP, ("vse",), ("image",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(_DEEP, ("omit", "saf"), ("image",), (0.4, 0.8), _SEEDS),
        Grid((*CLOSED_FORM, "linear"), ("linear",), ("caption",), (0.4, 0.6, 0.8), _SEEDS),
        Grid(_DEEP, ("aggregate",), ("caption",), (0.4, 0.8), _SEEDS),
    ),
    settings={"data.dev_images": DEV_IMAGES},
)
