"""Flickr30K with region features, each method with its published settings; needs a GPU."""

from experiments.benchmark.suite import Grid, Row, Suite
from l2rm_jax.settings import COMPARED


def published_rows(config: str) -> dict[str, Row]:
    """Rows that start from the variants of a config, which is also a key of `COMPARED`."""
    rows = {
        "l2rm": Row({"method": "l2rm"}, "loss"),
        "l2rm crossfit": Row({"method": "l2rm", "split.by": "crossfit"}, "crossfit"),
        "rcl": Row({"method": "rcl"}, config=f"{config}:rcl"),
    }
    for method in COMPARED[config]:
        split = "" if method == "crcl" else "loss"
        rows[method] = Row({"method": method}, split, config=f"{config}:{method}")
    return rows


_ROWS = published_rows("f30k")
_RATES, _SEEDS = (0.2, 0.4, 0.6, 0.8), (0, 1, 2)

SUITE = Suite(
    config="f30k",
    rows=_ROWS,
    grids=(Grid(tuple(_ROWS), ("sgr", "saf"), ("image", "caption"), _RATES, _SEEDS),),
)
