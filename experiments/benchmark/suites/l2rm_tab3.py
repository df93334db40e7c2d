"""L2RM Tab. 3 on the built-in data: rematching loss, full transport, mask, learned cost."""

from experiments.benchmark.suite import Grid, Row, Suite

_CHANGES = {
    "L2RM": {},
    "KL divergence": {"l2rm.rematch_loss": "kl"},
    "JS divergence": {"l2rm.rematch_loss": "js"},
    "InfoNCE loss": {"l2rm.rematch_loss": "infonce"},
    "without partial OT": {"l2rm.rho": 1.0},
    "without positives masked": {"l2rm.mask": "none"},
    "without cost function": {"l2rm.cost": "cosine"},
}
SUITE = Suite(
    config="scenes:long",
    rows={name: Row({"method": "l2rm", **fields}, "loss") for name, fields in _CHANGES.items()},
    grids=(Grid([*_CHANGES], ("saf",), ("image",), (0.6,), (0, 1, 2)),),
    needs_path=False,
)
