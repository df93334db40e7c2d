"""RCSL Fig. 3 on the built-in data: four losses. The report draws the validations by epoch.

Captions are permuted one by one, as in NCR's paper, which RCSL follows.
"""

from experiments.benchmark.suite import Grid, Row, Suite
from experiments.benchmark.suites.rcl_losses import ROWS as LOSSES


def _row(loss: str) -> Row:
    """The row of RCL's tables, with the learning rate of the config."""
    changes = dict(LOSSES[loss].changes)
    del changes["optim.decay_epochs"]
    return Row(changes)


ROWS = {
    "robust mining": _row("mae"),
    "InfoNCE": _row("CL"),
    "TRL": _row("TR-HN"),
    "TRL-S": _row("TR"),
}
SUITE = Suite(
    config="scenes:long",
    rows=ROWS,
    grids=(Grid([*ROWS], ("saf",), ("caption",), (0.6,), (0, 1, 2)),),
    needs_path=False,
)
