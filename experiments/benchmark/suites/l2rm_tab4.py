"""L2RM Tab. 4 on the built-in data: the loss of the warm-up."""

from experiments.benchmark.suite import Grid, Row, Suite

_LOSSES = {
    "RCE and InfoNCE": {},
    "InfoNCE": {"l2rm.warmup_loss": "infonce"},
    "triplet": {"l2rm.warmup_loss": "triplet"},
}
SUITE = Suite(
    config="scenes:long",
    rows={name: Row({"method": "l2rm", **fields}, "loss") for name, fields in _LOSSES.items()},
    grids=(Grid([*_LOSSES], ("saf",), ("image",), (0.8,), (0, 1, 2)),),
    needs_path=False,
)
