"""Measure how often the rate's interval holds the truth, and how right the list and its top are.

python -m experiments.judging.coverage --path=DIR --csv=coverage.csv

Sets differ in size, in the number of shared directions, in noise and in the share of mismatched
pairs; one caption an image. Small sets of further kinds follow: one caption per image; repeated
(five, with the image's vector in each row); separated (both sides in one space, hardly any noise).
--path adds text (two captions of an image of Flickr8k, by their sentence vectors) and the first 300
and 600 images of Flickr8k, five captions each. Each set is judged by linear models. --csv keeps the
sets that it has, so the command continues where it stopped; --kind measures sets of some kinds.

`listed` is the length of the list of suspicious pairs, `stated` the share of false alarms that the
audit states, `false_alarms` the true one; `top_said` is the mean posterior of the 50 most
suspicious pairs, `top_wrong` the share of them that are mismatched. The last lines say per kind how
many intervals hold the truth.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from experiments.judging.crossfit import load_train, make_config
from experiments.script import add_rows, new_parser, values_of
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import judge_pairs
from l2rm_jax.judging.verdict import suspicious_list

SETS = 60
PAIRS = 1000, 3000, 10_000, 30_000
SHARED = 8, 24, 48
NOISE = 0.5, 1.0, 1.5, 2.0, 2.5
RATES = 0.0, 0.05, 0.1, 0.25, 0.4, 0.6
DIMENSIONS = 64, 48
GAUSSIAN = "gaussian"
KINDS = "one", "repeated", "separated", "text"
FEW = 300, 1000, 3000  # pairs of these kinds
RATES_OF_KINDS = 0.05, 0.2, 0.4
EACH = 5  # captions per image, where there are several
TOP = 50
Row = dict[str, object]

FLICKR8K = "flickr8k"
SIZES = 300, 600
SWAPPED = *product(("image", "caption"), (0.2, 0.4), (0, 1)), ("image", 0.0, 0)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--path", type=Path, help="directory of Flickr8k")
    parser.add_argument("--kind", type=values_of(str), default=(GAUSSIAN, *KINDS, FLICKR8K))
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    flags = parser.parse_args()
    sets = {(GAUSSIAN, number): (gaussian, number) for number in range(flags.sets)}
    for pairs, rate, kind in product(FEW, RATES_OF_KINDS, KINDS):
        if flags.path or kind != "text":
            sets[kind, pairs, rate] = of_kind, kind, pairs, rate, flags.path
    for images, swapped in product(SIZES, SWAPPED) if flags.path else ():
        sets[FLICKR8K, images, *swapped] = photographs, flags.path, images, *swapped
    names = {"-".join(map(str, key)): kind for key, kind in sets.items() if key[0] in flags.kind}
    todo = {(name,): partial(named_row, name, *kind) for name, kind in names.items()}
    of_kinds = defaultdict(list)
    for row in add_rows(flags.csv, ("set",), todo):
        of_kinds[row["set"].split("-")[0]].append(row)
    for kind, rows in of_kinds.items():
        told = [row for row in rows if str(row["told"]) == "True"]
        held = sum(str(row["held"]) == "True" for row in told)
        print(f"{kind}: {len(told)} of {len(rows)} sets are told; {held} of these hold the truth")


def named_row(name: str, make: Callable[..., Row], *kind: object) -> list[Row]:
    return [{"set": name, **make(*kind)}]


def gaussian(number: int) -> Row:
    """Make a set of a Gaussian space and judge it; the number chooses its kind."""
    rng = np.random.default_rng(number)
    pairs, shared, noise, rate = (rng.choice(values) for values in (PAIRS, SHARED, NOISE, RATES))
    made = make_pairs(rng, pairs, shared, noise, rate)
    return measure(made, made.image_of != np.arange(pairs), shared, noise)


def of_kind(*kind: object) -> Row:
    """Make a small set of a kind and judge it."""
    return measure(*make_kind(*kind))


def make_kind(
    kind: str, count: int, rate: float, path: Path | None
) -> tuple[Pairs, Bool[np.ndarray, " pairs"]]:
    """Make a small set of a kind, and say which of its captions are swapped.

    Args:
      kind: one of `KINDS`.
      count: number of pairs.
      rate: share of them whose captions change places.
      path: directory of Flickr8k, for `text`.
    """
    rng = np.random.default_rng([KINDS.index(kind), count, round(100 * rate)])
    if kind == "text":
        texts = np.load(path / "train_minilm.npy", mmap_mode="r").reshape(-1, EACH, 384)
        sides = texts[rng.permutation(len(texts))[:count], :2].astype(np.float32)
        images, captions = sides[:, 0], sides[:, 1]
    else:
        shared, noise = (64, 0.2) if kind == "separated" else (24, 1.0)
        each = EACH if kind == "repeated" else 1
        cause = np.repeat(rng.standard_normal((count // each, shared)), each, axis=0)
        images, captions = (
            cause @ direction + noise * rng.standard_normal((count, direction.shape[1]))
            for direction in _directions(rng, kind, shared)
        )
        images = images[np.arange(count) // each * each]  # the rows of an image are equal
    wrong = rng.permutation(count)[: round(rate * count)]
    captions[wrong] = captions[np.roll(wrong, 1)]
    pairs = Pairs(images.astype(np.float32), captions.astype(np.float32), np.arange(count))
    return pairs, np.isin(np.arange(count), wrong)


def _directions(rng: np.random.Generator, kind: str, shared: int) -> list[np.ndarray]:
    """Maps of the shared vector to both sides; of separated sets, into the same space."""
    if kind == "separated":
        return [np.eye(shared)] * 2
    return [rng.standard_normal((shared, size)) / np.sqrt(shared) for size in DIMENSIONS]


def photographs(path: Path, images: int, protocol: str, rate: float, seed: int) -> Row:
    """Judge the first images of Flickr8k, some of whose captions are swapped."""
    config = make_config(path, images, protocol, rate, seed)
    train = load_train(config)
    return measure(train.to_judge, ~train.matched)


def measure(
    pairs: Pairs, wrong: Bool[np.ndarray, " pairs"], shared: object = "", noise: object = ""
) -> Row:
    """Judge a set; return its row of the table, without its name."""
    judged = judge_pairs(pairs)
    found, true = judged.rate, float(wrong.mean())
    listed, top = judged.order[: judged.list_length], judged.order[:TOP]
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
        "listed": len(listed),
        "stated": f"{suspicious_list(judged).false_alarms:.3f}" if len(listed) else "",
        "false_alarms": f"{np.mean(~wrong[listed]):.3f}" if len(listed) else "",
        "top_said": f"{judged.posterior[top].mean():.3f}",
        "top_wrong": f"{wrong[top].mean():.3f}",
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
