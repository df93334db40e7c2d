"""The table of the suite `clip-tier`: means, leads over `share`, and no empty cell."""

from itertools import product

import pytest

from experiments.benchmark.records import COLUMNS
from experiments.benchmark.suites.clip_tier import GROUPS, PROTOCOLS, RATES, SEEDS, SIDE_RATE
from experiments.papers.clip_tier import summary
from l2rm_jax.errors import DataError


def records():
    for group, names in GROUPS.items():
        rates = RATES if group == "1000" else (SIDE_RATE,)
        for name, protocol, rate, seed in product(names, PROTOCOLS, rates, SEEDS):
            rsum = 200 + seed + (10 + seed if name.startswith("osa ") else 0)
            known = {"row": name, "head": "linear", "protocol": protocol, "seed": seed}
            own = {**known, "rate_asked": rate, "test_rsum": rsum}
            yield {column: str(own.get(column, "")) for column in COLUMNS}


def test_the_table_has_every_row_with_the_lead_over_the_share():
    rows = list(records())
    main = {row["pairs"]: row for row in summary(rows, ["1000"], RATES)}
    assert len(main) == len(GROUPS["1000"])
    assert main["share"]["image 0.2"] == "201.0"
    assert main["all"]["caption 0.6"] == "201.0 [+0.0, +0.0]"
    others = [group for group in GROUPS if group != "1000"]
    further = {(row["start"], row["pairs"]): row for row in summary(rows, others, [SIDE_RATE])}
    assert further["300", "osa"]["image 0.4"] == "212.0 [+8.5, +13.5]"
    assert [*further["1000 fast", "osa"]] == ["start", "pairs", "image 0.4", "caption 0.4"]
    with pytest.raises(DataError, match=r"found no run of truth 1000 fast, caption 0\.4"):
        summary(rows[:-1], others, [SIDE_RATE])
