"""The built-in data set: every row, one head with interactions and two with vectors.

A small model on 500 pictures, no augmentation, the same epochs, batches and learning rate for all.
"""

from experiments.benchmark.rows import CLOSED_FORM, DEEP, ROWS
from experiments.benchmark.suite import Grid, Suite

_RATES, _SEEDS = (0.4, 0.8, 0.6, 0.2), (0, 1, 2)

SUITE = Suite(
    config="scenes:long",
    rows=ROWS,
    grids=(
        Grid(CLOSED_FORM, ("linear",), ("image", "caption"), _RATES, _SEEDS),
        Grid(DEEP, ("vse", "aggregate"), ("image", "caption"), _RATES, _SEEDS),
        Grid(DEEP, ("omit",), ("image", "caption"), _RATES, _SEEDS),
    ),
    settings={"data.scenes_train": 500, "loss.tau": 0.07, "crcl.schedules": (2, 2)},
    epochs=(6, 8),
    needs_path=False,
)
