"""RCL Tab. 4, NCR*, on the built-in data: NCR and BiCro with one network, beside two."""

from experiments.benchmark.suite import Grid, Row, Suite

ROWS = {
    f"{method} x{networks}": Row({"method": method, "train.networks": networks}, "loss")
    for method in ("ncr", "bicro")
    for networks in (1, 2)
}
SUITE = Suite(
    config="scenes:long",
    rows=ROWS,
    grids=(Grid([*ROWS], ("saf",), ("image",), (0.4,), (0, 1, 2)),),
    needs_path=False,
)
