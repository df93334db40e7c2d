"""Suites with the published settings of each method, for data that need a GPU."""

from collections.abc import Sequence

from experiments.benchmark.suite import Grid, Row, Suite
from l2rm_jax.settings import COMPARED


def published_suite(config: str, protocols: Sequence[str], rates: Sequence[float]) -> Suite:
    """Return the suite of a data set: heads `sgr` and `saf` or a method's own, three seeds.

    Args:
      config: name of its config, which is also a key of `COMPARED`; rows start from its variants.
      protocols: protocols of mismatch.
      rates: rates of mismatch.
    """
    rows = {
        "l2rm": Row({"method": "l2rm"}, "loss"),
        "l2rm crossfit": Row({"method": "l2rm", "split.by": "judgement"}, "crossfit"),
        "rcl": Row({"method": "rcl"}, config=f"{config}:rcl"),
    }
    for method in COMPARED[config]:
        split = "" if method == "crcl" else "loss"
        rows[method] = Row({"method": method}, split, config=f"{config}:{method}")
    heads = {row: ("sgr", "saf") for row in rows}
    for method, (_, _, changes) in COMPARED[config].items():
        if "model.head" in changes:
            heads[method] = (changes["model.head"],)
    grids = (Grid((row,), heads[row], protocols, rates, (0, 1, 2)) for row in rows)
    return Suite(config, rows, tuple(grids))
