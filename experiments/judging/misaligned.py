"""Measure the search for misaligned rows: kinds x share of the table, and clean tables.

python -m experiments.judging.misaligned --path=DIR --csv=misaligned.csv --summary=SUMMARY.csv

DIR has the files of Flickr8k; without --path, pairs are of a linear model. `tests/joins` makes the
tables and knows the truth row by row. A run is named if its largest finding has a right name;
put_back is the share of the misaligned rows that have their image after the repair. On tables of
which nothing is misaligned (kind "clean"), in three orders, every finding is false. With --known,
tables have one half of the images, and a judge of the other half has the models. --csv keeps the
rows that it has. --summary has a row per kind: runs named, and the least share put back,
without and with a random swap of 20% of the captions.
"""

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.script import add_rows, new_parser, start, values_of, write_rows
from l2rm_jax.audit.misaligned import known_models
from l2rm_jax.data.pairs import Pairs as JudgedPairs
from l2rm_jax.joins import find_misaligned
from l2rm_jax.judging import KeptJudge, judge_pairs
from tests.joins import further_kinds
from tests.joins.kinds import KINDS
from tests.joins.kinds_of_order import UNREPAIRED
from tests.joins.tables import (
    Case,
    Pairs,
    blended,
    flickr8k,
    make_case,
    near_swaps,
    synthetic,
    topics,
    walk,
)

IMAGES = 6000  # of Flickr8k; more pairs are sums of two
NAMES = "kind", "rows", "each", "share", "swapped", "seed"
ORDERS: dict[str, Callable[[Pairs], Pairs]] = {
    "file": lambda x: x,
    "similar": walk,
    "topics": topics,
}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", type=Path, help="directory of Flickr8k")
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    parser.add_argument("--summary", type=Path, help="table by kind")
    parser.add_argument(
        "--known",
        action="store_true",
        help="search by a kept judge's models; with a CSV of their own",
    )
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--kinds", type=values_of(str), default=[*KINDS])
    parser.add_argument("--shares", type=values_of(float), default=[0.1, 1.0])
    parser.add_argument("--swapped", type=values_of(float), default=[0.0, 0.2])
    parser.add_argument("--seeds", type=values_of(int), default=[30, 31])
    flags = parser.parse_args()
    if flags.known and flags.path is None:
        parser.error("--known: expected --path too")
    todo = dict(_runs(flags))
    rows = add_rows(flags.csv, NAMES, todo)
    if flags.summary:
        write_rows(flags.summary, summary([row for row in rows if row["kind"] != "clean"]))
    print(*totals(rows), sep="\n")


def _runs(flags: Any) -> Iterator[tuple[tuple, Callable[[], list[dict[str, Any]]]]]:
    for name, swapped, share, seed in product(
        flags.kinds, flags.swapped, flags.shares, flags.seeds
    ):
        if name == "clean":
            continue
        each = KINDS[name].each or 1
        key = name, flags.rows, each, share, swapped, seed
        yield key, partial(_measure_kind, flags, key)
    if "clean" in flags.kinds:
        swaps = ("none", "random", "near")
        for order, swapped, each, seed in product(ORDERS, swaps, (1, 5), flags.seeds):
            key = "clean", flags.rows, each, order, swapped, seed
            yield key, partial(_measure_clean, flags, key)


def make_pairs(flags: Any, rows: int, each: int, seed: int) -> Pairs:
    """Make pairs of Flickr8k, or of a linear model without a path."""
    images = rows // each
    if flags.path is None:
        return synthetic(images, each, seed)
    of = slice(0, None, 2) if flags.known else slice(None)
    most = IMAGES // 2 if flags.known else IMAGES
    pairs = flickr8k(flags.path, min(images, most), each, seed, of)
    return pairs if images <= most else blended(pairs, images, seed)


@cache
def _other_judge(path: Path) -> KeptJudge:
    """Return the judge of the pairs of every second image, from the second one on."""
    half = flickr8k(path, IMAGES // 2, 5, 0, slice(1, None, 2))
    image_of = np.repeat(np.arange(len(half.images)), half.each)
    return judge_pairs(JudgedPairs(half.images, half.captions, image_of)).judge


def _measure_kind(flags: Any, key: tuple) -> list[dict[str, Any]]:
    name, rows, each, share, swapped, seed = key
    case = make_case(KINDS[name], make_pairs(flags, rows, each, seed), share, swapped, seed)
    return [dict(zip(NAMES, key, strict=True)) | measure(flags, case, KINDS[name].names)]


def _measure_clean(flags: Any, key: tuple) -> list[dict[str, Any]]:
    _, rows, each, order, swapped, seed = key
    pairs = ORDERS[order](make_pairs(flags, rows, each, seed))
    case = make_case(KINDS["clean"], pairs, noise=0.2 * (swapped == "random"), seed=seed)
    case = near_swaps(case, 0.2, seed) if swapped == "near" else case
    return [dict(zip(NAMES, key, strict=True)) | measure(flags, case, ())]


def measure(flags: Any, case: Case, names: tuple[str, ...]) -> dict[str, Any]:
    """Search a table; return the columns of its row."""
    known = known_models(_other_judge(flags.path), case.images) if flags.known else None
    began = time.process_time()
    found = find_misaligned(**case.arguments(), known=known)
    seconds = time.process_time() - began
    largest = max(found.findings, key=lambda finding: finding.rows, default=None)
    listed = case.truth >= 0
    wrong, right = listed & (case.stored != case.truth), listed & (case.stored == case.truth)
    back = found.image_of == case.truth
    return {
        "misaligned": f"{wrong.mean():.4f}",
        "named": int(largest.kind in names if largest else not names),
        "put_back": f"{back[wrong].mean():.4f}" if wrong.any() else "",
        "right_moved": int((right & ~back).sum()),
        "seconds": f"{seconds:.2f}",
        "findings": "|".join(finding.kind for finding in found.findings[:6]),
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per kind: runs named and the least share put back, by share and swaps."""
    columns = sorted({(float(row["swapped"]), float(row["share"])) for row in rows})
    table = []
    for name in dict.fromkeys(row["kind"] for row in rows):
        line = {"kind": name}
        for swapped, share in columns:
            runs = [
                row for row in rows if row["kind"] == name
                and (float(row["swapped"]), float(row["share"])) == (swapped, share)
            ]  # fmt: skip
            text = f"{sum(int(row['named']) for row in runs)}/{len(runs)}"
            back = [float(row["put_back"]) for row in runs if row["put_back"] != ""]
            if back and name not in UNREPAIRED:
                text += f" {min(back):.2f}"
            line[f"{share:g}" + (f", {swapped:.0%} swapped" if swapped else "")] = text
        table.append(line)
    return table


def totals(rows: list[dict[str, Any]]) -> list[str]:
    """Return sentences on all runs: of the first kinds, of the further ones, of clean tables."""
    lines, first = [], further_kinds.FIRST
    for title, chosen in (("first", first - {"clean"}), ("further", {*KINDS} - first)):
        for swapped in sorted({row["swapped"] for row in rows if row["kind"] in chosen}, key=str):
            runs = [row for row in rows if row["kind"] in chosen and row["swapped"] == swapped]
            of_repair = [row for row in runs if row["kind"] not in UNREPAIRED]
            good = sum(float(row["put_back"] or 1) >= 0.98 for row in of_repair)
            moved = sum(int(row["right_moved"]) for row in runs)
            named = sum(int(row["named"]) for row in runs)
            seconds = np.median([float(row["seconds"]) for row in runs])
            lines.append(
                f"{title} kinds, {swapped} swapped: {named} of {len(runs)} named, {good} of "
                f"{len(of_repair)} put back to 98%, {moved} right rows moved, {seconds:.2f} s"
            )
    clean = [row for row in rows if row["kind"] == "clean"]
    wrong = sum(not int(row["named"]) for row in clean)
    return [*lines, f"clean: {wrong} of {len(clean)} tables with a false finding"]


if __name__ == "__main__":
    start(main, prepare=False)
