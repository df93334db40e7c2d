"""CC152K, whose pairs are mismatched as they come: published settings; needs a GPU."""

from experiments.benchmark.suite import Grid, Suite
from experiments.benchmark.suites.f30k import published_rows

_ROWS = published_rows("cc152k")

SUITE = Suite(
    config="cc152k",
    rows=_ROWS,
    grids=(Grid(tuple(_ROWS), ("sgr", "saf"), ("image",), (0.0,), (0, 1, 2)),),
)
