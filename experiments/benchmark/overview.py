"""The table for a reader in a hurry: every method by its own split, and by the cross-fitted one."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.benchmark.records import Record
from experiments.benchmark.rows import PUBLISHED, SPLITTING
from experiments.benchmark.statistics import mean_of, paired_difference, within_error
from experiments.benchmark.tables import (
    Cell,
    Table,
    by_cell,
    difference_cell,
    rates_of,
    short_rate,
)

RECIPE = "recipe linear"
# A line: the method alone, and with pairs judged by models that have not seen them.
LINES: Mapping[str, tuple[str, str]] = {
    "cca": ("cca", "cca weighted"),
    **{method: (method, f"{method} kept") for method in ("triplet", "infonce", "rcl", "crcl")},
    **{method: (method, f"{method} crossfit") for method in SPLITTING},
    "recipe": ("recipe unjudged", RECIPE),
}
RATES = ("0.4", "0.8")


def overview_table(records: Sequence[Record], protocol: str) -> Table | None:
    """Test rSum at two rates, both ways; None unless every cell is there."""
    chosen = [each for each in records if each["protocol"] == protocol]
    means = {
        (row, rate): mean_of([*seeds.values()])
        for (row, _, _, rate), seeds in by_cell(chosen, "test_rsum").items()
    }
    columns = [
        [means.get((rows[way], rate)) for rows in LINES.values()]
        for rate in RATES
        for way in (0, 1)
    ]
    if any(mean is None for column in columns for mean in column):
        return None
    cells = [
        [Cell(f"{mean.mean:.0f} ±{mean.deviation:.0f}", kind) for mean, kind in column]
        for column in (zip(column, within_error(column), strict=True) for column in columns)
    ]
    networks = {each["row"]: each["networks"] for each in chosen}
    lines = [
        (Cell(name), Cell(networks[LINES[name][1]]), *own)
        for name, own in zip(LINES, zip(*cells, strict=True), strict=True)
    ]
    names = [f"{rate} {way}" for rate in RATES for way in ("own", "cross-fitted")]
    return Table(f"Overview, protocol {protocol}", ("method", "networks", *names), lines)


def best_published(records: Sequence[Record]) -> str:
    """The published method that is best on validation by its own split, over all runs."""
    values = by_cell(records, "dev_rsum")

    def mean(method: str) -> float:
        rates = [np.mean([*each.values()]) for key, each in values.items() if key[0] == method]
        return float(np.mean(rates))

    known = {key[0] for key in values}
    return max((method for method in PUBLISHED if method in known), key=mean)


def lead_table(records: Sequence[Record]) -> Table:
    """Return the lead of the recipe over the best published method on the test, both ways.

    A line for each protocol and rate. Differences are paired by seed. The records hold runs of the
    recipe and of a published method.
    """
    best, values = best_published(records), by_cell(records, "test_rsum")
    seeds = {(row, protocol, rate): each for (row, _, protocol, rate), each in values.items()}
    recipe = [key for key in values if key[0] == RECIPE]
    rows = [
        (
            Cell(protocol),
            Cell(short_rate(rate)),
            *(_lead(seeds, other, protocol, rate) for other in LINES[best]),
        )
        for protocol in dict.fromkeys(key[2] for key in recipe)
        for rate in rates_of(recipe, protocol)
    ]
    columns = "protocol", "rate", f"{best}, own split", f"{best}, cross-fitted"
    return Table("Lead of the recipe", columns, rows)


def _lead(
    seeds: Mapping[tuple[str, str, str], Mapping[int, float]], other: str, protocol: str, rate: str
) -> Cell:
    there = seeds.get((other, protocol, rate), {})
    return difference_cell(paired_difference(seeds[RECIPE, protocol, rate], there))
