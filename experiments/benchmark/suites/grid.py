"""Every method with every head on the built-in data.

RCSL is told which images are paired: at rate r, a share 1 - r of them.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from experiments.benchmark.rows import SPLITTING
from experiments.benchmark.suite import Grid, Row, Suite
from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.methods import METHODS
from l2rm_jax.models import HEADS


def paired_images(config: ConfigDict) -> int:
    """Images that keep their captions."""
    return round((1 - config.mismatch.rate) * config.data.scenes_train)


def ours(registry: Mapping[str, Any]) -> list[str]:
    """Return the names of this library's own entries, without plug-ins and their example."""
    modules = {name: make.__module__ for name, make in registry.items()}
    return [
        name
        for name, module in modules.items()
        if module.startswith("l2rm_jax.") and ".example." not in module
    ]


_TOLD = {"mismatch.protocol": SEMI_PAIRED, "mismatch.paired_images": paired_images}
ROWS = {
    method: Row(
        {"method": method, **(_TOLD if method == "rcsl" else {})},
        "loss" if method in (*SPLITTING, "in2r") else "",
    )
    for method in ours(METHODS)
}
SUITE = Suite(
    config="scenes:long",
    rows=ROWS,
    grids=(Grid([*ROWS], ours(HEADS), ("image",), (0.0, 0.4, 0.8), (0,)),),
    needs_path=False,
)
