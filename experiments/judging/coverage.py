"""Measure how often the rate's interval holds the truth, on pairs of a Gaussian space plus noise.

python -m experiments.judging.coverage --path=DIR --csv=coverage.csv

Sets differ in size, in the number of shared directions, in noise and in the share of mismatched
pairs; one caption an image. --path adds the first 300 and 600 images of Flickr8k, five captions
each, at several rates. Each set is judged by linear models. --csv keeps the sets that it has, so
the command continues where it stopped. The last lines say how many intervals hold the truth.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from experiments.judging.crossfit import load_train, make_config
from experiments.script import add_rows, new_parser
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import judge_pairs

SETS = 60
PAIRS = 1000, 3000, 10_000, 30_000
SHARED = 8, 24, 48
NOISE = 0.5, 1.0, 1.5, 2.0, 2.5
RATES = 0.0, 0.05, 0.1, 0.25, 0.4, 0.6
DIMENSIONS = 64, 48
Row = dict[str, object]

FLICKR8K = "flickr8k"
SIZES = 300, 600
SWAPPED = *product(("image", "caption"), (0.2, 0.4), (0, 1)), ("image", 0.0, 0)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--path", type=Path, help="directory of Flickr8k")
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    flags = parser.parse_args()
    kinds = {str(number): (gaussian, number) for number in range(flags.sets)}
    for images, swapped in product(SIZES, SWAPPED) if flags.path else ():
        name = "-".join(map(str, (FLICKR8K, images, *swapped)))
        kinds[name] = photographs, flags.path, images, *swapped
    todo = {(name,): partial(named_row, name, *kind) for name, kind in kinds.items()}
    rows = add_rows(flags.csv, ("set",), todo)
    for of in ("Gaussian", FLICKR8K):
        here = [row for row in rows if row["set"].startswith(FLICKR8K) == (of == FLICKR8K)]
        told = [row for row in here if str(row["told"]) == "True"]
        held = sum(str(row["held"]) == "True" for row in told)
        print(f"{of}: {len(told)} of {len(here)} sets are told; {held} of these hold the truth")


def named_row(name: str, make: Callable[..., Row], *kind: object) -> list[Row]:
    return [{"set": name, **make(*kind)}]


def gaussian(number: int) -> Row:
    """Make a set of a Gaussian space and judge it; the number chooses its kind."""
    rng = np.random.default_rng(number)
    pairs, shared, noise, rate = (rng.choice(values) for values in (PAIRS, SHARED, NOISE, RATES))
    made = make_pairs(rng, pairs, shared, noise, rate)
    return measure(made, int(rate * pairs) / pairs, shared, noise)


def photographs(path: Path, images: int, protocol: str, rate: float, seed: int) -> Row:
    """Judge the first images of Flickr8k, some of whose captions are swapped."""
    config = make_config(path, images, protocol, rate, seed)
    train = load_train(config)
    return measure(train.to_judge, float(np.mean(~train.matched)))


def measure(pairs: Pairs, true: float, shared: object = "", noise: object = "") -> Row:
    """Judge a set; return its row of the table, without its name."""
    judged = judge_pairs(pairs)
    found = judged.rate
    return {
        "pairs": len(judged),
        "shared": shared,
        "noise": noise,
        "true": f"{true:.4f}",
        "rate": f"{found.estimate:.4f}",
        "rate_low": f"{found.low:.4f}",
        "rate_high": f"{found.high:.4f}",
        "auroc": f"{judged.auroc:.4f}",
        "told": not judged.unreliable_reason,
        "held": bool(found.low <= true <= found.high),
    }


def make_pairs(
    rng: np.random.Generator, count: int, shared: int, noise: float, rate: float
) -> Pairs:
    """Vectors whose images and captions are maps of one Gaussian vector, each with its noise."""
    cause = rng.standard_normal((count, shared))
    sides = [
        cause @ rng.standard_normal((shared, size)) / np.sqrt(shared)
        + noise * rng.standard_normal((count, size))
        for size in DIMENSIONS
    ]
    stored = np.arange(count)
    moved = rng.permutation(count)[: int(rate * count)]
    stored[moved] = stored[np.roll(moved, 1)]
    images, captions = (side.astype(np.float32) for side in sides)
    return Pairs(images, captions, stored)


if __name__ == "__main__":
    main()
