"""The first 2000 images of Flickr8k, captions read by a sentence encoder, frozen or trained.

The data are those that `experiments.papers.vectors` writes, one vector an image; their caption
vectors are not read. No row has dropout in the encoder, as its few epochs need none.
"""

from collections.abc import Mapping
from typing import Any

from experiments.benchmark.rows import KEPT
from experiments.benchmark.suite import Grid, Row, Suite
from experiments.judging.crossfit import DEV_IMAGES

_METHOD = {"method": "infonce"}
_RECIPE = {**_METHOD, "model.head": "linear"}
_GROUPS = {"train.length_groups": 8, "model.base_dropout": 0.0}


def _recipe(rate: float) -> Mapping[str, Any]:
    """The recipe with a rate of the encoder, relative to that of the maps; 0 freezes it."""
    return {**_RECIPE, **_GROUPS, "optim.text_rate": rate, "model.remat": rate > 0}


def _kept(rate: float) -> Mapping[str, Any]:
    """Three epochs from random maps, on the pairs that cross-fitting calls matched."""
    return {
        **_METHOD, **KEPT, **_GROUPS, "model.head": "vse",
        "loss.tau": 0.05, "optim.learning_rate": 1e-3, "optim.text_rate": rate,
        "optim.schedule": "cosine", "train.draw": "even", "train.batch_size": 128,
        "train.epochs": 3,
    }  # fmt: skip


ROWS = {
    "recipe words": Row(_RECIPE, "crossfit", config="recipes:linear"),
    "recipe frozen": Row(_recipe(0.0), "crossfit"),
    "recipe trained": Row(_recipe(0.2), "crossfit"),
    "infonce kept frozen": Row(_kept(0.0), "crossfit"),
    "infonce kept trained": Row(_kept(0.03), "crossfit"),
    "infonce kept trained faster": Row(_kept(0.1), "crossfit"),
}
GRIDS = (Grid([*ROWS], ("vse",), ("image",), (0.4, 0.8), (0, 1, 2)),)
SUITE = Suite(
    config="recipes:pretrained",
    rows=ROWS,
    grids=GRIDS,
    settings={"data.name": "flickr8k", "data.train_images": 2000, "data.dev_images": DEV_IMAGES},
    needs_pretrained=True,
)
