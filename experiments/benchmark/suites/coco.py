"""MS-COCO with region features, each method with its published settings; needs a GPU."""

from experiments.benchmark.suite import Grid, Suite
from experiments.benchmark.suites.f30k import published_rows

_ROWS = published_rows("coco")
_RATES, _SEEDS = (0.2, 0.4, 0.6, 0.8), (0, 1, 2)

SUITE = Suite(
    config="coco",
    rows=_ROWS,
    grids=(Grid(tuple(_ROWS), ("sgr", "saf"), ("image", "caption"), _RATES, _SEEDS),),
)
