"""OMIT and its rivals on clean pairs of Flickr8k with grid features (OMIT Tab. 3, 4 and Fig. 3).

Every row has OMIT's recipe: the triplet loss, one epoch without hard negatives, random regions and
words left out. `experiments.bench.matching` measures the time of matching (OMIT Tab. 5).
"""

from collections.abc import Mapping
from typing import Any

from experiments.benchmark.suite import Grid, Row, Suite

RECIPE = {
    "model.dropout": 0.0,
    "model.region_mask": 0.2,
    "model.word_noise": 0.2,
    "loss.margin": 0.05,
    "optim.weight_decay": 5e-4,
    "optim.decay_epochs": 9,
    "train.warmup_epochs": 1,
    "train.epochs": 14,
}
_LAMBDAS, _MARGINS = (0.005, 0.01, 0.05, 0.1, 0.5), ("intra", "inter", "norm")


def _row(head: str, **fields: Any) -> Row:
    changes: Mapping[str, Any] = {f"model.{key}": value for key, value in fields.items()}
    return Row({"method": "triplet", "model.head": head, **changes})


ROWS = {
    "VSE": _row("vse"),
    "VSE GPO": _row("vse", pooling="gpo"),
    "PEM": _row("pem"),
    "CAM": _row("cam", matching="naive"),
    "partial CAM": _row("cam"),
    "naive OT": _row("omit", matching="naive"),
    "full OT": _row("omit", matching="full"),
    "prompt OT": _row("omit", matching="prompt"),
    "partial OT": _row("omit"),
    **{f"lambda {value:g}": _row("omit", match_epsilon=value) for value in _LAMBDAS},
    **{f"margins {margins}": _row("omit", margins=margins) for margins in _MARGINS},
}
SUITE = Suite(
    config="flickr8k",
    rows=ROWS,
    grids=(Grid([*ROWS], ("omit",), ("image",), (0.0,), (0, 1, 2)),),
    settings=RECIPE,
)
