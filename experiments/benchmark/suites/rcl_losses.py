"""RCL's losses and ablations on the built-in data: the rows of RCL Tab. 6, then those of Tab. 7.

All losses train for the same epochs at one learning rate. CCL of Tab. 7 is `log`.
"""

from collections.abc import Mapping
from typing import Any

from experiments.benchmark.suite import Grid, Row, Suite
from experiments.papers.runs import total_epochs


def _row(fields: Mapping[str, Any], is_warmup: bool = False) -> Row:
    """A row with all epochs of the config in one phase."""
    warmup, epochs = (total_epochs, 0) if is_warmup else (0, total_epochs)
    phases = {"train.warmup_epochs": warmup, "train.epochs": epochs}
    return Row({**fields, **phases, "optim.decay_epochs": total_epochs})


def _rcl(loss: str, negatives: int = 0) -> Row:
    return _row({"method": "rcl", "rcl.loss": loss, "rcl.negatives": negatives})


ROWS = {
    "mae one negative": _rcl("mae", negatives=1),
    **{loss: _rcl(loss) for loss in ("mae", "exp", "log", "gce", "tan")},
    # The triplet loss has all negatives in the warm-up, and the hardest after it.
    "TR": _row({"method": "triplet"}, is_warmup=True),
    "TR-HN": _row({"method": "triplet"}),
    "NL": _rcl("log", negatives=1),
    "CL": _row({"method": "infonce"}),
}
SUITE = Suite(
    config="scenes:long",
    rows=ROWS,
    grids=(Grid([*ROWS], ("saf",), ("image",), (0.2, 0.4, 0.6, 0.8), (0, 1, 2)),),
    needs_path=False,
)
