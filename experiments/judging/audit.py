"""Audit Flickr8k with captions mismatched on purpose, and compare with other scores and the truth.

python -m experiments.judging.audit --path=DIR --csv=audit.csv
python -m experiments.judging.audit --path=DIR --text=minilm --protocol=caption --rate=0.2 --seed=0

A cell is a kind of caption vectors, a protocol, a rate and a seed. Its rows are the audit and the
scores beside it: the plain cosine of the audit's model, its information, LEMoN with the authors'
fixed settings, and cleanlab if it is installed (pip install 'l2rm_jax[peers]'). --detector=lemon
adds an audit by the detector of tests/plugins/lemon.py. The truth scores the results. --csv keeps
the cells that it has, so the command continues where it stopped. --summary writes their means
over the seeds.

--text: tfidf (words alone), or minilm, where DIR has train_minilm.npy, sentence vectors of the
training captions; words are then the second space of captions.
--protocol: see `experiments.judging.mismatches`. The protocol noun takes a tagger of words
(pip install 'l2rm_jax[peers]').
--captions: of an image, 5 or 1.
"""

import time
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.judging.crossfit import calibration_error, load_train, make_config, order_score
from experiments.judging.mismatches import mismatched
from experiments.script import add_rows, new_parser, read_rows, start, values_of, write_rows
from l2rm_jax.auroc import auroc
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.vectors import caption_vectors, image_vectors
from l2rm_jax.judging import Judgement, judge_pairs, make_detector
from l2rm_jax.linear.rows import unit_rows
from l2rm_jax.run.config_file import load_config, with_changes

PLUGINS = "tests.plugins"
FOUND = 0.9
SUMMARY_OF = "text", "captions", "protocol", "asked"
BESIDE = "cosine", "lemon", "cleanlab"
AVERAGED = "average_precision", "false_positives", "rate", "ece"
# Settings of the scores of other tools.
NEIGHBOURS = 30
BETA = GAMMA = 5.0  # the fixed settings of LEMoN's authors
TAU_NEAR, TAU_MATCH = 0.1, 5.0
CLUSTERS, FOLDS = 30, 5
_BLOCK = 512


class Vectors(NamedTuple):
    """Vectors of Flickr8k.

    Attributes:
      images: [images, di].
      captions: [pairs, dc], by name of --text.
      caption_image: [pairs] row of the image that each caption was written for.
      texts: [pairs] the captions.
    """

    images: Float[np.ndarray, "images di"]
    captions: dict[str, Float[np.ndarray, "pairs dc"]]
    caption_image: Int[np.ndarray, " pairs"]
    texts: list[str]


class Cell(NamedTuple):
    """Settings of one audit; the first columns of its rows."""

    text: str
    captions: int
    protocol: str
    asked: float
    seed: int


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--path", required=True, type=Path, help="directory of the data")
    parser.add_argument("--text", type=values_of(str), default=["tfidf"])
    parser.add_argument("--captions", type=values_of(int), default=[5])
    parser.add_argument("--protocol", type=values_of(str), default=["caption", "image", "hard"])
    parser.add_argument("--rate", type=values_of(float), default=[0.05, 0.2, 0.4])
    parser.add_argument("--seed", type=values_of(int), default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=0, help="training images, 0 = all")
    parser.add_argument("--top", type=int, default=5, help="proposals for each pair, 0 for none")
    parser.add_argument("--peers", action="store_true", help="also LEMoN and cleanlab")
    parser.add_argument("--detector", default="", help="also audit by a plug-in of tests/plugins")
    parser.add_argument("--csv", required=True, type=Path, help="rows, kept and added to")
    parser.add_argument("--summary", type=Path, help="audit nothing, write means over seeds")
    flags = parser.parse_args()
    if flags.summary:
        write_rows(flags.summary, summary(read_rows(flags.csv)))
        return
    vectors = load_vectors(flags.path, flags.images)
    grid = product(flags.seed, flags.text, flags.captions, flags.protocol, flags.rate)
    cells = [Cell(*kind, seed) for seed, *kind in grid]
    options = vectors, flags.top, flags.peers, flags.detector
    add_rows(flags.csv, Cell._fields, {cell: partial(measure, cell, *options) for cell in cells})


def summary(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """A row for each cell: means over its seeds, of the audit, and the AUROC of scores beside it.

    A number that is missing for a seed stays empty. Information, a part of the audit's own score,
    is left out.
    """
    cells: dict[tuple, dict[str, list[dict[str, str]]]] = {}
    for row in rows:
        cell = cells.setdefault(tuple(row[name] for name in SUMMARY_OF), {})
        cell.setdefault(row["score"], []).append(row)

    def mean(same: list[dict[str, str]], name: str) -> str:
        values = [row[name] for row in same]
        return f"{np.mean([*map(float, values)]):.3f}" if values and all(values) else ""

    return [
        dict(zip(SUMMARY_OF, cell, strict=True))
        | {"seeds": len(scores["audit"]), "auroc": mean(scores["audit"], "auroc")}
        | {name: mean(scores.get(name, []), "auroc") for name in BESIDE}
        | {name: mean(scores["audit"], name) for name in AVERAGED}
        for cell, scores in sorted(cells.items())
    ]


def load_vectors(path: Path, images: int) -> Vectors:
    """Read the features and pool them; sentence vectors where they are."""
    train = load_train(make_config(path, images, "caption", 0.0, 0))
    rows = np.arange(len(train))
    captions = {"tfidf": np.asarray(caption_vectors(train.to_judge).rows[rows], np.float32)}
    sentences = path / "train_minilm.npy"
    if sentences.is_file():
        captions["minilm"] = np.load(sentences)[rows].astype(np.float32)
    pooled = np.asarray(image_vectors(train.to_judge).rows, np.float32)
    return Vectors(pooled, captions, train.caption_image, train.captions)


def measure(
    cell: Cell, vectors: Vectors, top: int, peers: bool = False, detector: str = ""
) -> list[dict[str, Any]]:
    """Audit one cell; return a row for each score."""
    chosen = np.arange(0, len(vectors.caption_image), 5 // cell.captions)
    own, captions = vectors.caption_image[chosen], vectors.captions[cell.text][chosen]
    texts = [vectors.texts[row] for row in chosen]
    stored = mismatched(cell.protocol, cell.asked, cell.seed, own, captions, texts)
    words = None if cell.text == "tfidf" else vectors.captions["tfidf"][chosen]
    pairs = Pairs(vectors.images, captions, stored, words=words)
    begin = time.perf_counter()
    found = judge_pairs(pairs, top=top, seed=cell.seed)
    judged_in = {"audit": (found, time.perf_counter() - begin)}
    if detector:
        config = load_config("flickr8k", plugins=[f"{PLUGINS}.{detector}"])
        config = with_changes(config, {"judgement.detector": detector})
        begin = time.perf_counter()
        by_it = judge_pairs(pairs, make_detector(config), name=detector, top=top, seed=cell.seed)
        judged_in[f"audit by {detector}"] = by_it, time.perf_counter() - begin
    wrong = stored != own
    scores = {name: order_score(judgement) for name, (judgement, _) in judged_in.items()}
    scores |= {"cosine": -found.similarity, "information": -found.information}
    if peers:
        scores["lemon"] = lemon_score(vectors.images, captions, stored, found.similarity)
        if find_spec("cleanlab"):
            scores["cleanlab"] = cleanlab_score(vectors.images, captions, stored)
    rest = {
        name: {**judged(by, wrong), **proposed(by, wrong, own), "seconds": round(seconds)}
        for name, (by, seconds) in judged_in.items()
    }
    empty = dict.fromkeys(rest["audit"])
    return [
        {
            **cell._asdict(),
            "score": name,
            "true": _number(wrong.mean()),
            **ranked(score, wrong),
            **rest.get(name, empty),
        }
        for name, score in scores.items()
    ]


def ranked(score: Float[np.ndarray, " pairs"], wrong: Bool[np.ndarray, " pairs"]) -> dict[str, Any]:
    """Return how well a score orders the pairs; empty where all are matched."""
    if not wrong.any():
        return dict.fromkeys(("auroc", "average_precision", "precision", "false_positives"))
    order = np.argsort(-score, kind="stable")
    right = wrong[order]
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    bound = np.quantile(score[wrong], 1 - FOUND)
    return {
        "auroc": _number(auroc(score, wrong)),
        "average_precision": _number(precision[right].mean()),
        "precision": _number(right[: wrong.sum()].mean()),
        "false_positives": _number((score[~wrong] >= bound).mean()),
    }


def judged(found: Judgement, wrong: Bool[np.ndarray, " pairs"]) -> dict[str, Any]:
    """Rate, calibration and list of the judgement, against the truth."""
    listed = wrong[found.order[: found.list_length]]
    any_listed = bool(len(listed)) and wrong.any()
    by_name = {each.name: each.auroc for each in found.mechanisms}
    return {
        "rate": _number(found.rate.estimate),
        "rate_low": _number(found.rate.low),
        "rate_high": _number(found.rate.high),
        "ece": _number(calibration_error(found.posterior, wrong)),
        "list_false_alarms": _number(1 - listed.mean()) if any_listed else None,
        "list_recall": _number(listed.sum() / wrong.sum()) if any_listed else None,
        **{f"{name}_auroc": _number(by_name[name]) for name in ("image", "caption", "near")},
    }


def proposed(
    found: Judgement, wrong: Bool[np.ndarray, " pairs"], own: np.ndarray
) -> dict[str, Any]:
    """Return how often a caption is proposed first for its own image.

    Of the mismatched captions that are suspicious, and of the quarter with the highest probability.
    """
    suspicious = np.flatnonzero((found.posterior > 0.5) & wrong)
    if not len(suspicious) or not found.proposal.shape[1]:
        return {"proposal_first": None, "proposal_quarter": None}
    best = np.full(len(wrong), -1)
    value = np.zeros(len(wrong))
    for place in range(found.proposal.shape[1]):
        caption, probability = found.proposal[:, place], found.probability[:, place]
        order = np.argsort(probability, kind="stable")
        order = order[caption[order] >= 0]
        better = probability[order] > value[caption[order]]
        order = order[better]
        best[caption[order]], value[caption[order]] = found.image_of[order], probability[order]
    right = best[suspicious] == own[suspicious]
    surest = np.argsort(-value[suspicious], kind="stable")[: len(suspicious) // 4]
    return {
        "proposal_first": _number(right.mean()),
        "proposal_quarter": _number(right[surest].mean()),
    }


def lemon_score(
    images: Float[np.ndarray, "images di"],
    captions: Float[np.ndarray, "pairs dc"],
    image_of: Int[np.ndarray, " pairs"],
    similarity: Float[np.ndarray, " pairs"],
) -> Float[np.ndarray, " pairs"]:
    """Return LEMoN's score with its fixed settings; the higher, the worse the pair.

    The distance of a pair, plus the mean distance of its caption to the captions of near images,
    plus the distance of its image to the images of near captions. Neighbours count the less, the
    farther they are and the worse they are matched themselves.

    References:
        Zhang et al., LEMoN: Label Error Detection using Multimodal Neighbors, ICML 2025.
    """
    images, captions = unit_rows(images)[image_of], unit_rows(captions)
    distance = 1 - np.asarray(similarity)
    near_images, near_captions = np.empty((2, len(captions)))
    for first in range(0, len(captions), _BLOCK):
        rows = np.arange(first, min(first + _BLOCK, len(captions)))
        by_image, by_caption = 1 - images[rows] @ images.T, 1 - captions[rows] @ captions.T
        near_images[rows] = _mean_of_near(rows, by_image, by_caption, distance)
        near_captions[rows] = _mean_of_near(rows, by_caption, by_image, distance)
    return distance + BETA * near_images + GAMMA * near_captions


def _mean_of_near(rows, near, other, distance) -> Float[np.ndarray, " n"]:
    near = near.copy()
    near[np.arange(len(rows)), rows] = np.inf
    at = np.argpartition(near, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    far = np.take_along_axis(near, at, axis=1)
    weight = np.exp(-TAU_NEAR * far) * np.exp(-TAU_MATCH * distance[at])
    return (weight * np.take_along_axis(other, at, axis=1)).mean(axis=1)


def cleanlab_score(
    images: Float[np.ndarray, "images di"],
    captions: Float[np.ndarray, "pairs dc"],
    image_of: Int[np.ndarray, " pairs"],
    seed: int = 0,
) -> Float[np.ndarray, " pairs"]:
    """Return one less cleanlab's self-confidence, with clusters of captions as classes.

    A logistic regression from the image to the cluster gives the probabilities, out of fold by
    image.
    """
    from cleanlab.rank import get_self_confidence_for_each_label
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    cluster = KMeans(CLUSTERS, n_init=1, random_state=seed).fit_predict(unit_rows(captions))
    features = unit_rows(images)[image_of]
    probability = np.zeros((len(captions), CLUSTERS))
    for train, test in GroupKFold(FOLDS).split(features, cluster, image_of):
        model = LogisticRegression(max_iter=300).fit(features[train], cluster[train])
        probability[np.ix_(test, model.classes_)] = model.predict_proba(features[test])
    return 1 - get_self_confidence_for_each_label(cluster, probability)


def _number(value: float) -> str:
    return f"{value:.4f}"


if __name__ == "__main__":
    start(main)
