"""Fit models to a join, and say how much more probable a caption is with an image than at random.

A join gives an image for each caption. The models are cross-fitted over images, so that no pair is
judged by a model that was fitted to it. The settings belong to the thresholds of this room; with
other codes, tables without misaligned rows have to be searched again.
"""

from dataclasses import dataclass, replace
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
_TEMPERATURE = 0.1
_REFERENCES = 400
_FITTED = 20_000  # most rows that models are fitted to
_COMPARED = 30_000
_LOW, _HIGH, _STEPS = -12.0, 12.0, 4096  # nats of information, and steps between them
_LEAST_AUROC = 0.75
SAFE = 0.9  # power of the ratios, as they are estimates
LEAST, MOST = -3.0 * SAFE, 3.5 * SAFE  # nats of a row


@dataclass(frozen=True, eq=False)
class Evidence:
    """Codes by models that lack the fold of each row, and the density ratio of information.

    Inner products of the codes of an image and of a caption are their information: how much more
    similar the two are than either is to others, in nats.

    Attributes:
      fold: fold of each row, by the image that it is joined to.
      image_codes: of each image, by the model of each fold.
      caption_codes: of each row, by the model of its fold.
      ratios: density ratio of matched to random pairs, by steps of information.
      rate: share of the joined pairs that fit no better than random pairs.
      auroc: of joined pairs against random ones, corrected for the rate.
      images: number of joined images.
    """

    fold: Int[np.ndarray, " P"]
    image_codes: Float[np.ndarray, "F I c"]
    caption_codes: Float32[np.ndarray, "P c"]
    ratios: Float[np.ndarray, " steps"]
    rate: float
    auroc: float
    images: int

    @property
    def usable(self) -> bool:
        """Whether the models separate joined pairs from random ones."""
        most = 1 - max(0.06, 4 / max(self.images, 1) ** 0.5)
        return self.auroc >= _LEAST_AUROC and self.rate <= most

    def nats(
        self, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Return the log ratio of captions with images, within limits for a single row.

        Some right pairs fit no better than random ones.
        """
        return self._table[_step(_information(self, rows, images))]

    def block(
        self, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " m"] | None = None
    ) -> Float32[np.ndarray, "n m"]:
        """Return `nats` of captions with all these images; None: with all images."""
        at = slice(None) if images is None else images
        count = self.image_codes.shape[1] if images is None else len(images)
        steps = np.empty((len(rows), count), np.int32)
        for f in np.unique(self.fold[rows]):
            own = self.fold[rows] == f
            steps[own] = _step(self.caption_codes[rows[own]] @ self.image_codes[f][at].T)
        return self._table[steps]

    def apart(
        self, rows: Int[np.ndarray, " n"], one: Int[np.ndarray, " n"], two: Int[np.ndarray, " n"]
    ) -> Float32[np.ndarray, " n"]:
        """Return 1 for two images that the model of a row separates, 0 for near duplicates."""
        f, codes = self.fold[rows], self.image_codes[..., :-2]
        return np.clip((0.95 - np.einsum("nd,nd->n", codes[f, one], codes[f, two])) * 2, 0, 1)

    @cached_property
    def _table(self) -> Float32[np.ndarray, " steps"]:
        slip = 0.05 + 0.95 * self.rate  # share of right pairs that fit no better than random ones
        nats = SAFE * np.log((1 - slip) * self.ratios + slip)
        return np.clip(nats, LEAST, MOST).astype(np.float32)


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
    weights = _nested_weights(table, join, rows, fold[rows], rng)
    total = cca.moments(table.images, table.captions, join[rows], rows, weights)
    some = rng.permutation(len(table.images))[:_REFERENCES]
    some_rows = rng.permutation(len(table))[:_REFERENCES]
    kind = np.float32 if len(table.images) <= 300_000 else np.float16
    models = [_fit(part, table, len(rows), _POWER) for part in total]
    width = len(models[0].correlations) + 2
    image_codes = np.empty((FOLDS, len(table.images), width), kind)
    caption_codes = np.empty((len(table), width), np.float32)
    for f, model in enumerate(models):
        own = np.flatnonzero(fold == f)
        coded = _encoded(model, table.images, table.captions[own])
        references = _encoded(model, table.images[some], table.captions[some_rows])
        image_codes[f], caption_codes[own] = _informative(*coded, *references)
    return _calibrated(fold, image_codes, caption_codes, join, rng)


def _fit(moments: np.ndarray, table: Table, rows: int, power: float) -> Cca:
    ridge = _RIDGE if rows >= _FEW else _RIDGE_OF_FEW
    return cca.fit(moments, table.images.shape[1], ridge, _COMPONENTS, power)


def _nested_weights(
    table: Table, join: np.ndarray, rows: np.ndarray, fold: np.ndarray, rng: np.random.Generator
) -> Float32[np.ndarray, "F n"]:
    """Return weights of the rows for the model that lacks a fold, by models that lack it too."""
    parts = [
        cca.moments(table.images, table.captions, join[own], own, np.ones((1, len(own))))[0]
        for own in (rows[fold == f] for f in range(FOLDS))
    ]
    weights = np.full((FOLDS, len(rows)), 1e-3, np.float32)
    weights[fold, np.arange(len(rows))] = 0
    some_images = rng.permutation(len(table.images))[:_REFERENCES]
    some_rows = rows[rng.permutation(len(rows))[:_REFERENCES]]
    for two in combinations(range(FOLDS), 2):
        model = _fit(sum(parts) - parts[two[0]] - parts[two[1]], table, len(rows), _NESTED_POWER)
        references = _encoded(model, table.images[some_images], table.captions[some_rows])
        for outer, inner in (two, two[::-1]):
            own = np.flatnonzero(fold == inner)
            if len(own) < 2:
                continue
            pairs = _encoded(model, table.images[join[rows[own]]], table.captions[rows[own]])
            v, t = _informative(*pairs, *references)
            wrong = np.concatenate([rng.permutation(len(own)) for _ in range(4)])
            null = np.einsum("nd,nd->n", v[wrong], np.tile(t, (4, 1)))
            x = np.einsum("nd,nd->n", v, t)
            ratios, rate, _ = _density_ratio(x, np.sort(null))
            right = (1 - rate) * ratios[_step(x)]
            weights[outer, own] = np.clip(right / (right + rate), 1e-3, 1)
    return weights


def _encoded(
    model: Cca, images: np.ndarray, captions: np.ndarray
) -> tuple[Float32[np.ndarray, "n c"], Float32[np.ndarray, "m c"]]:
    return (
        unit_rows((images - model.image_mean) @ model.image_map),
        unit_rows((captions - model.caption_mean) @ model.caption_map),
    )


def _informative(
    v: np.ndarray, t: np.ndarray, of_images: np.ndarray, of_captions: np.ndarray
) -> tuple[Float32[np.ndarray, "n c"], Float32[np.ndarray, "m c"]]:
    """Return codes of images and captions whose inner products are information.

    The level of a code, log mean exp of its similarities with references, is taken off by halves.
    """
    level_v, level_t = _level(v, of_captions)[:, None], _level(t, of_images)[:, None]
    return (
        np.hstack([v, -level_v / 2, np.ones_like(level_v)]),
        np.hstack([t / np.float32(_TEMPERATURE), np.ones_like(level_t), -level_t / 2]),
    )


def _level(codes: np.ndarray, references: np.ndarray) -> Float32[np.ndarray, " n"]:
    level = np.empty(len(codes), np.float32)
    for start in range(0, len(codes), 8192):
        s = codes[start : start + 8192] @ references.T / np.float32(_TEMPERATURE)
        level[start : start + 8192] = np.log(np.exp(s).mean(axis=1))  # at most exp(10)
    return level


def _calibrated(
    fold: np.ndarray,
    image_codes: np.ndarray,
    caption_codes: np.ndarray,
    join: np.ndarray,
    rng: np.random.Generator,
) -> Evidence:
    """Estimate the density ratio of the joined pairs."""
    joined = np.flatnonzero(join >= 0)
    compared = joined if len(joined) <= _COMPARED else rng.permutation(joined)[:_COMPARED]
    draws = int(np.clip(200_000 // max(len(compared), 1), 2, 20))
    wrong = np.zeros((len(compared), draws), int)  # of the same fold, which the model lacks too
    for f in range(FOLDS):
        own = np.flatnonzero(fold[compared] == f)
        if len(own):
            wrong[own] = join[compared[rng.choice(own, (len(own), draws))]]
    random = rng.integers(0, image_codes.shape[1], wrong.shape)
    joins = join[compared][:, None]
    repeated = np.repeat(compared, draws).reshape(wrong.shape)
    first = Evidence(fold, image_codes, caption_codes, np.zeros(_STEPS), 1.0, 0.5, 0)
    x = _information(first, compared, join[compared])
    null, any_image = (
        _information(first, repeated[y != joins], y[y != joins]) for y in (wrong, random)
    )
    ratios, rate, auroc = _density_ratio(x, np.sort(null))
    mean = ratios[_step(any_image)].mean()  # 1 if all folds have similar images
    ratios = np.maximum(ratios / max(float(mean), 1.0), 0.01)
    images = len(np.unique(join[joined]))
    return replace(first, ratios=ratios, rate=rate, auroc=auroc, images=images)


def _information(
    evidence: Evidence, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, " n"]:
    x = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), 65536):
        r, i = rows[start : start + 65536], images[start : start + 65536]
        codes = evidence.image_codes[evidence.fold[r], i]
        x[start : start + 65536] = np.einsum("nd,nd->n", evidence.caption_codes[r], codes)
    return x


def _density_ratio(
    x: np.ndarray, null: np.ndarray
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
    return np.clip(ratio, 0.01, 1e4)[cell].astype(np.float32), rate, auroc


def _step(x: np.ndarray) -> Int[np.ndarray, "..."]:
    return np.clip((x - _LOW) * ((_STEPS - 1) / (_HIGH - _LOW)), 0, _STEPS - 1).astype(np.int32)
