"""Every method with every head, an epoch on little data: shows that they work, not how well."""

from experiments.benchmark.suites.grid import SUITE as GRID

SUITE = GRID._replace(
    config="scenes:quick",
    grids=[grid._replace(rates=(0.4,)) for grid in GRID.grids],
    settings={"crcl.schedules": ()},
    epochs=(0, 1),
)
