"""The first 2000 images of Flickr8k, captions read by a sentence encoder, frozen or trained.

The data are those that `experiments.papers.vectors` writes, one vector an image. `recipe frozen`
reads their caption vectors, made by the same encoder. The other rows read captions, and have
one network, no dropout in the encoder, and three epochs, `crcl` two before them with a network of
its own: ten to thirty minutes on one core.
"""

from collections.abc import Mapping
from typing import Any

from experiments.benchmark.rows import KEPT, RECIPE, RECIPES
from experiments.benchmark.suite import Grid, Row, Suite
from experiments.judging.crossfit import DEV_IMAGES

_ENCODER = {"model.base_dropout": 0.0, "train.batch_size": 128, "train.length_groups": 8}
_RANDOM_MAPS = {
    **_ENCODER, "model.head": "vse", "loss.tau": 0.05, "optim.learning_rate": 1e-3,
    "train.draw": "even",
}  # fmt: skip
_COSINE = {"train.epochs": 3, "optim.schedule": "cosine"}


def _kept(rate: float) -> Row:
    """From random maps, on the pairs that cross-fitting calls matched."""
    changes = {"method": "infonce", **KEPT, **_RANDOM_MAPS, **_COSINE, "optim.text_rate": rate}
    return Row(changes, "crossfit")


def _published(method: str, fields: Mapping[str, Any], split: str = "loss") -> Row:
    """From random maps, one epoch on all pairs, two with the method's own judgement.

    Step by step, as a cosine does not fit schedules that start again: a tenth in the last epoch.
    """
    steps = {"train.warmup_epochs": 1, "train.epochs": 2, "optim.decay_epochs": 1}
    changes = {"method": method, **_RANDOM_MAPS, **steps, "optim.text_rate": 0.1, **fields}
    return Row(changes, split)


ROWS = {
    "recipe frozen": RECIPES["recipe linear"],
    "recipe trained": Row({**RECIPE, **_ENCODER, **_COSINE, "optim.text_rate": 1.0}, "crossfit"),
    "infonce kept frozen": _kept(0.0),
    "infonce kept trained": _kept(0.03),
    "infonce kept trained faster": _kept(0.1),
    "crcl trained": _published("crcl", {"crcl.schedules": (1,)}, split=""),
    "l2rm trained": _published("l2rm", {"l2rm.epsilon": 0.01}),
    "rcsl_nc trained": _published("rcsl_nc", {}),
}
SUITE = Suite(
    config="recipes:pretrained",
    rows=ROWS,
    grids=(Grid([*ROWS], ("vse",), ("image",), (0.4, 0.8), (0, 1, 2)),),
    settings={"data.name": "flickr8k", "data.train_images": 2000, "data.dev_images": DEV_IMAGES},
    needs_pretrained=True,
)
