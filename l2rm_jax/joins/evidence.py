"""Fit models to a join, and say how much more probable a caption is with an image than at random.

A join gives an image for each caption. The models are cross-fitted over images, so that no pair is
judged by a model that was fitted to it. The settings belong to the thresholds of this room; with
other codes, tables without misaligned rows have to be searched again.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from scipy.optimize import isotonic_regression

from l2rm_jax.joins.table import Table
from l2rm_jax.linear import cca
from l2rm_jax.linear.cca import Cca, Ridge
from l2rm_jax.linear.rows import unit_rows

FOLDS = 5
LEAST_IMAGES = 40  # fewest images that a space is fitted to
_COMPONENTS = 64
_POWER, _NESTED_POWER = 1.5, 1.0
_RIDGE, _RIDGE_OF_FEW, _FEW = Ridge(1, 1), Ridge(2, 2), 1000
TEMPERATURE = 0.1
_REFERENCES = 400
_FITTED = 20_000  # most rows that models are fitted to
_COMPARED = 30_000
_CODES = 100_000_000  # most values of codes in float32
_LOW, _HIGH, _STEPS = -12.0, 12.0, 4096  # nats of information, and steps between them
_EDGES = np.array([0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0 + 1e-9])
_LEAST_AUROC = 0.75


@dataclass(frozen=True, eq=False)
class Evidence:
    """Codes by models that lack the fold of each row, and the density ratio of information.

    Attributes:
      fold: fold of each row, by the image that it is joined to.
      image_codes, image_level: of each image, by the model of each fold.
      caption_codes, caption_level: of each row, by the model of its fold.
      ratios: density ratio of matched to random pairs, by steps of information.
      rate: share of the joined pairs that fit no better than random pairs.
      auroc: of joined pairs against random ones, corrected for the rate.
      images: number of joined images.
      spread: variance of the images' codes; less than 1 where all of them are similar.

    With models of other pairs, density ratios, AUROC and number of images are of those pairs, and
    the captions' codes have the length that brings their similarities to one temperature.
    """

    fold: Int[np.ndarray, " P"]
    image_codes: Float[np.ndarray, "F I c"]
    image_level: Float32[np.ndarray, "F I"]
    caption_codes: Float32[np.ndarray, "P c"]
    caption_level: Float32[np.ndarray, " P"]
    ratios: Float[np.ndarray, " steps"]
    rate: float
    auroc: float
    images: int
    spread: float = 1.0

    @property
    def usable(self) -> bool:
        """Whether the models separate joined pairs from random ones."""
        most = 1 - max(0.06, 4 / max(self.images, 1) ** 0.5)
        return self.auroc >= _LEAST_AUROC and self.rate <= most

    def ratio(
        self, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Return the density ratio of captions with images, pair by pair."""
        return self.ratios[_step(information(self, rows, images))]

    def nats(
        self, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Return the log ratio of captions with images, some right pairs being random ones."""
        return self._table[_step(information(self, rows, images))]

    def block(
        self, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " m"] | None = None
    ) -> Float32[np.ndarray, "n m"]:
        """Return `nats` of captions with all these images; None: with all images."""
        return self._table[self._steps_of_block(rows, images)]

    def ratio_block(
        self, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " m"]
    ) -> Float32[np.ndarray, "n m"]:
        """Return `ratio` of captions with all these images."""
        return self.ratios[self._steps_of_block(rows, images)]

    def apart(
        self, rows: Int[np.ndarray, " n"], one: Int[np.ndarray, " n"], two: Int[np.ndarray, " n"]
    ) -> Float32[np.ndarray, " n"]:
        """Return 1 for two images that the model of a row separates, 0 for near duplicates."""
        f = self.fold[rows]
        alike = np.einsum("nd,nd->n", self.image_codes[f, one], self.image_codes[f, two])
        return np.clip(((1 - alike) / self.spread - 0.05) * 2, 0, 1)

    @cached_property
    def _table(self) -> Float32[np.ndarray, " steps"]:
        slip = 0.05 + 0.95 * self.rate
        return np.log((1 - slip) * self.ratios + slip).astype(np.float32)

    def _steps_of_block(self, rows: np.ndarray, images: np.ndarray | None) -> np.ndarray:
        at = slice(None) if images is None else images
        count = self.image_level.shape[1] if images is None else len(images)
        steps = np.empty((len(rows), count), np.int32)
        for f in np.unique(self.fold[rows]):
            own = self.fold[rows] == f
            codes = self.caption_codes[rows[own]] / np.float32(TEMPERATURE)
            x = codes @ self.image_codes[f][at].T
            x -= self.image_level[f][at] / 2
            steps[own] = _step(x - self.caption_level[rows[own], None] / 2)
        return steps


class Fits(ABC):
    """Evidence on joins of one table; the last one is kept, as the same join is asked again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._join: np.ndarray | None = None

    def __call__(self, join: Int[np.ndarray, " P"]) -> Evidence:
        """Return evidence by models that lack the fold of each row."""
        if self._join is None or not np.array_equal(join, self._join):
            self._evidence, self._join = self._of(join), join.copy()
        return self._evidence

    @abstractmethod
    def _of(self, join: Int[np.ndarray, " P"]) -> Evidence:
        """Return evidence on a join."""

    @abstractmethod
    def without(
        self, join: Int[np.ndarray, " P"], fitted: Bool[np.ndarray, " P"] | None
    ) -> Evidence:
        """Return evidence by models that have seen some of the rows only; None: all."""


class OwnFits(Fits):
    """Evidence by models that are fitted to the join."""

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__(seed)
        self._table = table

    def _of(self, join: Int[np.ndarray, " P"]) -> Evidence:
        return fit_evidence(self._table, join, self.seed)

    def without(
        self, join: Int[np.ndarray, " P"], fitted: Bool[np.ndarray, " P"] | None
    ) -> Evidence:
        """As `Fits`, with other folds."""
        return fit_evidence(self._table, join, self.seed + 1, fitted)


def fit_evidence(
    table: Table,
    join: Int[np.ndarray, " P"],
    seed: int = 0,
    fitted: Bool[np.ndarray, " P"] | None = None,
) -> Evidence:
    """Fit models to a join in two rounds: the first one weights the rows of the second.

    Args:
      table: the rows.
      join: image of each row; -1: none.
      seed: seed of folds and references.
      fitted: rows that models may be fitted to; None: all.
    """
    rng = np.random.default_rng(seed)
    image_fold = rng.permutation(np.arange(len(table.images)) % FOLDS)
    joined = join >= 0
    fold = np.where(joined, image_fold[join], 0)
    rows = np.flatnonzero(joined if fitted is None else joined & fitted)
    if len(rows) > _FITTED:
        rows = np.sort(rng.permutation(rows)[:_FITTED])
    ridge = _RIDGE if len(rows) >= _FEW else _RIDGE_OF_FEW
    parts = [
        cca.moments(table.images, table.captions, join[own], own, np.ones((1, len(own))))[0]
        for own in (rows[fold[rows] == f] for f in range(FOLDS))
    ]
    weights = _nested_weights(table, join, rows, fold[rows], parts, ridge, rng)
    total = cca.moments(table.images, table.captions, join[rows], rows, weights)
    models = [_fit(part, table, ridge, _POWER) for part in total]
    return _calibrated(table, join, fold, models, rows, rng)


def _fit(moments: np.ndarray, table: Table, ridge: Ridge, power: float) -> Cca:
    return cca.fit(moments, table.images.shape[1], ridge, _COMPONENTS, power)


def _nested_weights(
    table: Table,
    join: np.ndarray,
    rows: np.ndarray,
    fold: np.ndarray,
    parts: list[np.ndarray],
    ridge: Ridge,
    rng: np.random.Generator,
) -> Float32[np.ndarray, "F n"]:
    """Return weights of the rows for the model that lacks a fold, by models that lack it too."""
    weights = np.full((FOLDS, len(rows)), 1e-3, np.float32)
    for f in range(FOLDS):
        weights[f, fold == f] = 0
    some_images = rng.permutation(len(table.images))[:_REFERENCES]
    some_rows = rows[rng.permutation(len(rows))[:_REFERENCES]]
    whole = sum(parts)
    for two in combinations(range(FOLDS), 2):
        model = _fit(whole - parts[two[0]] - parts[two[1]], table, ridge, _NESTED_POWER)
        of_captions = codes_of_captions(model, table.captions[some_rows])
        of_images = codes_of_images(model, table.images[some_images])
        for outer, inner in (two, two[::-1]):
            own = np.flatnonzero(fold == inner)
            if len(own) < 2:
                continue
            v = codes_of_images(model, table.images[join[rows[own]]])
            t = codes_of_captions(model, table.captions[rows[own]])
            level_v, level_t = _levels(v, of_captions), _levels(t, of_images)
            x = (v * t).sum(1) / TEMPERATURE - (level_v + level_t) / 2
            wrong = [rng.permutation(len(own)) for _ in range(4)]
            null = [(v[w] * t).sum(1) / TEMPERATURE - (level_v[w] + level_t) / 2 for w in wrong]
            weights[outer, own] = _matched_share(x, np.concatenate(null))
    return weights


def codes_of_images(model: Cca, rows: np.ndarray) -> Float32[np.ndarray, "n c"]:
    """Return unit vectors of images, as `Cca.encode_images` without compilation."""
    return unit_rows((rows - model.image_mean) @ model.image_map)


def codes_of_captions(model: Cca, rows: np.ndarray) -> Float32[np.ndarray, "n c"]:
    """Return unit vectors of captions, likewise."""
    return unit_rows((rows - model.caption_mean) @ model.caption_map)


def _levels(codes: np.ndarray, references: np.ndarray) -> Float32[np.ndarray, " n"]:
    """Return log mean exp of the similarities with references."""
    level = np.empty(len(codes), np.float32)
    for start in range(0, len(codes), 8192):
        s = codes[start : start + 8192] @ references.T / np.float32(TEMPERATURE)
        level[start : start + 8192] = np.log(np.exp(s).mean(axis=1))  # at most exp(10)
    return level


def _matched_share(x: np.ndarray, null: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return the probability of being matched, by a density ratio in steps of the null."""
    below = np.searchsorted(np.sort(null), x) / len(null)
    rate = float(np.clip(2 * (below < 0.5).mean(), 1e-3, 1.0))
    share = np.histogram(below, _EDGES)[0] / len(x) / np.diff(_EDGES)
    share = isotonic_regression(share, weights=np.diff(_EDGES)).x
    random = rate / np.maximum(share, 1e-9)
    return np.clip(1 - random[np.searchsorted(_EDGES, below, "right") - 1], 1e-3, 1)


def _calibrated(
    table: Table,
    join: np.ndarray,
    fold: np.ndarray,
    models: list[Cca],
    rows: np.ndarray,
    rng: np.random.Generator,
) -> Evidence:
    """Encode all rows and images, and estimate the density ratio of the joined pairs."""
    codes = _encoded(table, fold, models, rng)
    joined = np.flatnonzero(join >= 0)
    compared = joined if len(joined) <= _COMPARED else rng.permutation(joined)[:_COMPARED]
    draws = int(np.clip(200_000 // max(len(compared), 1), 2, 20))
    wrong = np.zeros((len(compared), draws), int)  # of the same fold, which the model lacks too
    for f in range(FOLDS):
        own = np.flatnonzero(fold[compared] == f)
        if len(own):
            wrong[own] = join[compared[rng.choice(own, (len(own), draws))]]
    random = rng.integers(0, len(table.images), wrong.shape)
    joins = join[compared][:, None]
    repeated = np.repeat(compared, draws).reshape(wrong.shape)
    first = Evidence(fold, *codes, np.zeros(_STEPS), 1.0, 0.5, 0)
    x = information(first, compared, join[compared])
    null, any_image = (
        information(first, repeated[y != joins], y[y != joins]) for y in (wrong, random)
    )
    ratios, rate, auroc = density_ratio(x, np.sort(null), any_image)
    return Evidence(fold, *codes, ratios, rate, auroc, len(np.unique(join[joined])))


def _encoded(
    table: Table, fold: np.ndarray, models: list[Cca], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    images, captions = len(table.images), len(table)
    some_images = rng.permutation(images)[:_REFERENCES]
    some_captions = rng.permutation(captions)[:_REFERENCES]
    width = models[0].image_map.shape[1]
    image_codes = empty_codes(FOLDS, images, width)
    caption_codes = np.empty((captions, width), np.float32)
    image_level = np.empty((FOLDS, images), np.float32)
    caption_level = np.empty(captions, np.float32)
    for f, model in enumerate(models):
        codes = codes_of_images(model, table.images)
        image_codes[f] = codes
        image_level[f] = _levels(codes, codes_of_captions(model, table.captions[some_captions]))
        own = np.flatnonzero(fold == f)
        caption_codes[own] = codes_of_captions(model, table.captions[own])
        caption_level[own] = _levels(caption_codes[own], codes[some_images])
    return image_codes, image_level, caption_codes, caption_level


def empty_codes(*shape: int) -> Float[np.ndarray, "F I c"]:
    """Return room for the codes of images: in half precision, where it would be 400 MB or more."""
    return np.empty(shape, np.float32 if np.prod(shape) <= _CODES else np.float16)


def information(
    evidence: Evidence, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, " n"]:
    """Return how much more similar a caption and an image are than either is to others."""
    x = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), 65536):
        r, i = rows[start : start + 65536], images[start : start + 65536]
        f = evidence.fold[r]
        s = np.einsum("nd,nd->n", evidence.caption_codes[r], evidence.image_codes[f, i])
        level = evidence.image_level[f, i] + evidence.caption_level[r]
        x[start : start + 65536] = s / TEMPERATURE - level / 2
    return x


def density_ratio(
    x: np.ndarray, null: np.ndarray, random: np.ndarray
) -> tuple[Float[np.ndarray, " steps"], float, float]:
    """Estimate the ratio of matched to random pairs by information; the rate; the AUROC."""
    below = np.searchsorted(null, x) / max(len(null), 1)
    rate = float(np.clip(2 * (below < 0.5).mean(), 1e-3, 1.0))
    auroc = float((below.mean() - rate / 2) / max(1 - rate, 1e-3)) if rate < 1 else 0.5
    least = max(30 / len(null), 0.6 / len(x))
    tails = np.unique([*np.linspace(1, 0.1, 10), *np.geomspace(0.1, max(least, 1e-5), 14)])
    edges = np.concatenate([[0], np.sort(1 - tails[tails >= least]), [1]])
    mass = np.diff(edges)
    full = mass > 1e-9
    counts, mass, upper = np.histogram(below, edges)[0][full], mass[full], edges[1:][full]
    share = (counts + 0.5 * mass) / (len(x) + 0.5) / mass
    ratio = isotonic_regression((share - rate) / max(1 - rate, 0.02), weights=mass).x
    steps = np.searchsorted(null, np.linspace(_LOW, _HIGH, _STEPS)) / len(null)
    cell = np.minimum(np.searchsorted(upper, steps, "right"), len(mass) - 1)
    ratios = np.clip(ratio, 0.01, 1e4)[cell]
    mean = ratios[_step(random)].mean()  # 1 if all folds have similar images
    return np.maximum(ratios / max(float(mean), 1.0), 0.01).astype(np.float32), rate, auroc


def _step(x: np.ndarray) -> Int[np.ndarray, "..."]:
    return np.clip((x - _LOW) * ((_STEPS - 1) / (_HIGH - _LOW)), 0, _STEPS - 1).astype(np.int32)
