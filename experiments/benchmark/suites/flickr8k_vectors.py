"""The first 2000 images of Flickr8k as frozen vectors, which `experiments.vectors` writes.

A run takes ten to thirty seconds on one core. Every method has its own split and the one of
cross-fitting; those of two networks are trained with one, too.
"""

from experiments.benchmark.rows import CLOSED_FORM, DEEP, ROWS
from experiments.benchmark.suite import Grid, Row, Suite
from experiments.crossfit import DEV_IMAGES

_RECIPE = {"method": "infonce", "model.head": "linear"}
_ONE = {
    f"{method} x1": Row({"method": method, "train.networks": 1}, "loss")
    for method in ("ncr", "bicro", "sps", "cream")
}
LINEAR = (*CLOSED_FORM, "recipe linear", "recipe linear x2")
EVERY = (*LINEAR, *DEEP, *_ONE)
CLEAN = tuple(row for row in EVERY if row not in ("truth", "infonce kept"))  # as these drop nothing

SUITE = Suite(
    config="flickr8k:vectors",
    rows={
        **ROWS,
        **_ONE,
        "recipe linear": Row(_RECIPE, "crossfit", config="recipes:linear"),
        "recipe linear x2": Row(_RECIPE, "crossfit", config="recipes:recall"),
    },
    grids=(
        Grid(EVERY, ("vse",), ("image",), (0.4, 0.8), (0, 1, 2, 3, 4)),
        Grid(EVERY, ("vse",), ("image",), (0.2, 0.6), (0, 1, 2)),
        Grid(CLEAN, ("vse",), ("image",), (0.0,), (0, 1, 2)),
        Grid(EVERY, ("vse",), ("caption",), (0.4, 0.8), (0, 1, 2)),
    ),
    settings={"data.name": "flickr8k", "data.train_images": 2000, "data.dev_images": DEV_IMAGES},
)
