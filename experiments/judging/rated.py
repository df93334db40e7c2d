"""Compare a kept judge with people who rated pairs of Flickr8k's images and captions.

python -m experiments.judging.rated --path=FLICKR8K --rated=RATED --vectors=VECTORS \\
    --encoder=BERT_DIR --csv=rated.csv --certificates=certificate.csv

RATED has rated_ims.npy, rated_caps.txt, expert.csv and crowd.csv: ratings of three experts from 1
(does not describe the image at all) to 4, and shares of a crowd who say yes. VECTORS is what
`experiments.papers.vectors` writes of FLICKR8K with the same encoder; its training split is the
reference, none of whose images are rated. --csv keeps the rows that it has.

Scores: agreement with the experts (Kendall's tau_c, own pairs left out, the three ratings
flattened) and with the crowd (tau_b, own pairs kept), times 100. P-values: false alarms on the
images' own pairs, and flagged pairs by the mean of their ratings. Mixtures: own pairs, a share of
which is replaced by rated pairs of the same image; wrong is a mean rating below 2.5.
Certificates: rows of `experiments.judging.certificate`, for the mixtures.
"""

import csv
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int
from scipy.stats import kendalltau

from experiments.judging import certificate
from experiments.judging.crossfit import calibration_error
from experiments.papers.vectors import MOST_TOKENS, encoded, pooled
from experiments.script import add_rows, new_parser, start
from l2rm_jax.audit.certificate import rank_kept
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import DataError
from l2rm_jax.judging import judge_pairs
from l2rm_jax.judging.kept_judge import Judged, KeptJudge
from l2rm_jax.linear.rows import unit_rows
from l2rm_jax.linear.set_features import fit_pooling
from l2rm_jax.pretrained.directory import open_pretrained, read_kind
from l2rm_jax.run.frozen_encoder import FrozenCaptions

EACH = 5  # captions of an image
WRONG = 2.5  # mean rating
BINS = {"1": (1, 1.1), "1.3-1.7": (1.2, 1.8), "2": (1.9, 2.1), "2.3-2.7": (2.2, 2.8), "3": (2.9, 4)}
SAME = 1e-3  # of a cosine: the caption itself
LEVELS = 0.01, 0.05, 0.1, 0.2
SHARES, DRAWS = (0.0, 0.1, 0.3, 0.5), 8
CERTIFIED, SEEDS = (0.1, 0.3), 3  # shares of the mixtures that are certified, and draws of each


class Ratings(NamedTuple):
    """Rated pairs: rows of images and of captions, ratings per pair, and whether it is own."""

    image: Int[np.ndarray, " n"]
    caption: Int[np.ndarray, " n"]
    rating: Float[np.ndarray, "n people"]
    own: np.ndarray


class Rated(NamedTuple):
    """Vectors of the rated images and of all captions; the images' own captions come first."""

    images: Float32[np.ndarray, "images di"]
    captions: Float32[np.ndarray, "captions dc"]
    expert: Ratings
    crowd: Ratings


def main() -> None:
    parser = rated_parser(__doc__)
    parser.add_argument("--certificates", type=Path, help="also certificates, added to these rows")
    flags = parser.parse_args()
    rated = load_rated(flags.path, flags.rated, flags.encoder)
    judge = reference(flags.vectors, np.arange(6000))
    todo = {
        ("agreement",): partial(agreement, judge, rated),
        ("p",): partial(flagged, judge, rated),
        **{("mixture", f"{s}"): partial(mixtures, judge, rated, s) for s in SHARES},
    }
    todo = {(*key, "")[:2]: call for key, call in todo.items()}
    add_rows(flags.csv, ("part", "kind"), todo)
    if flags.certificates:
        seeds = range(SEEDS)
        cells = [certificate.Cell("rated", share, seed) for seed in seeds for share in CERTIFIED]
        calls = {cell: partial(certified, judge, rated, cell) for cell in cells}
        add_rows(flags.certificates, certificate.Cell._fields, calls)


def rated_parser(description: str | None) -> ArgumentParser:
    """Return a parser with the flags of Flickr8k, its vectors and the ratings."""
    parser = new_parser(description)
    parser.add_argument("--path", required=True, type=Path, help="directory of Flickr8k")
    parser.add_argument("--rated", required=True, type=Path, help="directory of the ratings")
    parser.add_argument("--vectors", required=True, type=Path, help="vectors of Flickr8k")
    parser.add_argument("--encoder", required=True, help="directory of the captions' encoder")
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    return parser


def reference(vectors: Path, rows: Int[np.ndarray, " images"]) -> KeptJudge:
    """Return the judge that an audit of these training images with their captions keeps."""
    images = np.load(vectors / "train_ims.npy")[rows].astype(np.float32)
    captions = np.load(vectors / "train_caps.npy").reshape(-1, EACH, 384)[rows]
    captions = captions.reshape(-1, captions.shape[2]).astype(np.float32)
    return keep(Pairs(images, captions, np.repeat(np.arange(len(rows)), EACH)))


def keep(pairs: Pairs) -> KeptJudge:
    """Return the judge that an audit of pairs keeps."""
    judge = judge_pairs(pairs).judge
    assert judge is not None
    return judge


def load_rated(path: Path, directory: Path, encoder: str) -> Rated:
    """Read the rated pairs, and pool and encode them like the vectors of Flickr8k.

    Raises:
      DataError: there are no ratings in the directory.
    """
    if not (directory / "expert.csv").is_file():
        raise DataError(f"{directory}: found no expert.csv, expected ratings of Flickr8k's pairs")
    train = RegionFeatures.read(path / "train_ims.npy")
    numbers = np.load(directory / "rated_ims.npy") * np.load(path / "ims_scale.npy")
    images = RegionFeatures.from_array(numbers.astype(np.float32), "rated_ims.npy")
    pooling = fit_pooling(lambda k: (train.rows(k), train.region_counts(k)), len(train))
    texts = (directory / "rated_caps.txt").read_text().splitlines()
    own, place = len(texts), {}
    ratings = {}
    for name, columns in {"expert": ("first", "second", "third"), "crowd": ("share_yes",)}.items():
        with (directory / f"{name}.csv").open(newline="") as file:
            rows = [*csv.DictReader(file)]
        for row in rows:
            if row["caption"] not in place:
                place[row["caption"]] = len(texts)
                texts.append(row["caption"])
        ratings[name] = Ratings(
            np.array([int(row["image_row"]) for row in rows]),
            np.array([place[row["caption"]] for row in rows]),
            np.array([[float(row[column]) for column in columns] for row in rows]),
            np.array([row["own"] == "1" for row in rows]),
        )
    assert own == EACH * len(images)
    opened = open_pretrained(encoder, read_kind(encoder), max_words=MOST_TOKENS)
    text_encoder = FrozenCaptions(opened.bases.text, opened.parameters()["text_base"], vector=True)
    vectors = encoded(texts, opened.pieces, text_encoder).astype(np.float32)
    return Rated(pooled(images, pooling).astype(np.float32), vectors, **ratings)


def score(judge: KeptJudge, rated: Rated, image: np.ndarray, caption: np.ndarray) -> Judged:
    """Score images with captions by the judge."""
    return judge.score(rated.images, rated.captions[caption], image)


def own_pairs(rated: Rated) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of the images and of the captions that were written for them."""
    captions = np.arange(EACH * len(rated.images))
    return captions // EACH, captions


def agreement(judge: KeptJudge, rated: Rated) -> list[dict[str, object]]:
    """Return the agreement of each score with experts and crowd."""
    expert, crowd = rated.expert, rated.crowd
    found = {"expert": score(judge, rated, *expert[:2]), "crowd": score(judge, rated, *crowd[:2])}
    names = "information", "similarity", "likeness"
    scores = {name: [getattr(judged, name) for judged in found.values()] for name in names}
    own = scores["own captions"] = [like_own(judge, rated, *x[:2]) for x in (expert, crowd)]
    scores["own captions and likeness"] = [
        (x - x.mean()) / x.std() + (y - y.mean()) / y.std()
        for x, y in zip(own, scores["likeness"], strict=True)
    ]
    rows = []
    for name, (of_expert, of_crowd) in scores.items():
        people = expert.rating.shape[1]
        rest = np.repeat(of_expert[~expert.own], people)
        tau_c = kendalltau(rest, expert.rating[~expert.own].ravel(), variant="c").statistic
        tau_b = kendalltau(of_crowd, crowd.rating[:, 0], variant="b").statistic
        others = kendalltau(of_crowd[~crowd.own], crowd.rating[~crowd.own, 0]).statistic
        values = {"tau_c": tau_c, "tau_b": tau_b, "tau_b_without_own": others}
        rows += [row("agreement", name, column, 100 * value) for column, value in values.items()]
    return rows


def like_own(
    judge: KeptJudge, rated: Rated, image: np.ndarray, caption: np.ndarray
) -> Float[np.ndarray, " n"]:
    """Return the highest cosine of a caption with the image's own captions, without itself."""
    assert judge.witnesses is not None
    unit = unit_rows(rated.captions - judge.witnesses.mean)
    own = unit[: EACH * len(rated.images)].reshape(-1, EACH, unit.shape[1])[image]
    cosines = np.einsum("ncd,nd->nc", own, unit[caption])
    return np.where(cosines > 1 - SAME, -1, cosines).max(axis=1)


def row(part: str, kind: object, name: str, value: float) -> dict[str, object]:
    return {"part": part, "kind": kind, "name": name, "value": f"{value:.4f}"}


def flagged(judge: KeptJudge, rated: Rated) -> list[dict[str, object]]:
    """Return the share of pairs at or below some p-values, by the mean of their ratings."""
    expert, own = rated.expert, score(judge, rated, *own_pairs(rated)).p
    p, mean = score(judge, rated, *expert[:2]).p, expert.rating.mean(axis=1)
    groups = {"own": own}
    for name, (low, high) in BINS.items():
        groups[name] = p[~expert.own & (mean >= low) & (mean < high)]
    return [
        row("p", name, f"at {level}", (values <= level).mean())
        for name, values in groups.items()
        for level in LEVELS
    ]


def mixed(
    rated: Rated, share: float, seed: int, most: float = np.inf
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replace a share of the images' own pairs by rated pairs of the same image.

    Args:
      rated: the pairs.
      share: share of the own pairs to replace; those of images without rated pairs stay.
      seed: seed of the draws.
      most: highest mean rating of a pair that replaces another.

    Returns:
      [pairs] rows of the images and of the captions, and mean ratings; 4 for own pairs.
    """
    expert, rng = rated.expert, np.random.default_rng(seed)
    image, caption = own_pairs(rated)
    mean, means = np.full(len(image), 4.0), expert.rating.mean(axis=1)
    usable = ~expert.own & (means <= most)
    by_image = {i: np.flatnonzero((expert.image == i) & usable) for i in set(expert.image)}
    for at in rng.permutation(len(image))[: int(share * len(image))]:
        rows = by_image.get(int(image[at]), np.zeros(0, int))
        if len(rows):
            chosen = rng.choice(rows)
            caption[at], mean[at] = expert.caption[chosen], means[chosen]
    return image, caption, mean


def mixtures(judge: KeptJudge, rated: Rated, share: float) -> list[dict[str, object]]:
    """Return rates and posteriors where rated pairs replace a share of the images' own pairs."""
    found = []
    for seed in range(DRAWS):
        image, caption, mean = mixed(rated, share, seed)
        wrong = mean < WRONG
        judged = judge.finish([score(judge, rated, image, caption)])
        rate, posterior = judged.rate, judged.posterior
        found.append(
            {
                "true": wrong.mean(),
                "estimate": rate.estimate,
                "low": rate.low,
                "high": rate.high,
                "upper_bound": judged.upper_bound,
                "holds": rate.low <= wrong.mean() <= rate.high,
                "ece": calibration_error(posterior, wrong),
                "brier": np.mean((posterior - wrong) ** 2),
                "posterior of 1": posterior[mean < 1.1].mean() if share else np.nan,
                "told": not judged.unreliable_reason,
            }
        )
    return [row("mixture", share, name, np.mean([x[name] for x in found])) for name in found[0]]


def certified(judge: KeptJudge, rated: Rated, cell: certificate.Cell) -> list[dict[str, object]]:
    """Return rows of certificates of a mixture."""
    image, caption, mean = mixed(rated, cell.rate, cell.seed)
    found = judge.finish([score(judge, rated, image, caption)])
    return certificate.rows_of(cell, rank_kept(found.order, found.kind), mean < WRONG)


if __name__ == "__main__":
    start(main)
