"""Evidence by models of other pairs, such as a kept judge's: they need no join to be fitted to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from l2rm_jax.joins.evidence import (
    TEMPERATURE,
    Evidence,
    Fits,
    codes_of_captions,
    codes_of_images,
    density_ratio,
    empty_codes,
    information,
)
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import BLOCK, Rows, TakenRows

_DRAWS = 20  # random captions of each image of the reference
_MOST_RATE = 0.5  # of random pairs, as a join in which all rows are wrong may be no noise


class KnownModels(NamedTuple):
    """Models of folds, and matched pairs that the model of their fold has not seen.

    Attributes:
      models: of the folds.
      images, captions: [folds, R, components] codes of the matched pairs.
      fold: [images] fold of each image of the table.
      temperature: divisor of the cosines.
    """

    models: Sequence[Cca]
    images: Float32[np.ndarray, "F R c"]
    captions: Float32[np.ndarray, "F R c"]
    fold: Int[np.ndarray, " I"]
    temperature: float


class KnownFits(Fits):
    """Evidence (`Fits`) by models of other pairs."""

    def __init__(
        self,
        known: KnownModels,
        images: Rows,
        captions: Rows,
        listed: Int[np.ndarray, " I"],
        seed: int,
    ) -> None:
        super().__init__(seed)
        self._known, self._fold = known, known.fold[listed]
        self._images, self._captions = TakenRows(images, listed), captions

    def _of(self, join: Int[np.ndarray, " P"]) -> Evidence:
        # A row has the fold of the image that it is joined to.
        image_codes, image_level = self._of_images
        fold = np.where(join >= 0, self._fold[join], 0)
        codes = np.empty((len(join), image_codes.shape[2]), np.float32)
        level = np.empty(len(join), np.float32)
        for f, model in enumerate(self._known.models):
            own = np.flatnonzero(fold == f)
            of_fold = _encoded(partial(codes_of_captions, model), self._captions, own)
            codes[own] = of_fold * np.float32(TEMPERATURE / self._known.temperature)
            level[own] = self._levels(of_fold, self._known.images[f])
        ratios, auroc, middle, spread = self._reference
        images = self._known.images.shape[0] * self._known.images.shape[1]
        sides = image_codes, image_level, codes, level
        found = Evidence(fold, *sides, ratios, _MOST_RATE, auroc, images, spread)
        joined = join >= 0
        x = information(found, np.flatnonzero(joined), join[joined])
        return replace(found, rate=min(2 * float((x < middle).mean()), _MOST_RATE))

    def without(
        self, join: Int[np.ndarray, " P"], fitted: Bool[np.ndarray, " P"] | None
    ) -> Evidence:
        """As `Fits`: the models have not seen any row."""
        return self(join)

    @cached_property
    def _of_images(self) -> tuple[Float[np.ndarray, "F I c"], Float32[np.ndarray, "F I"]]:
        """Codes and levels of all images by the model of each fold."""
        known, every = self._known, np.arange(len(self._fold))
        codes = empty_codes(len(known.models), len(every), known.images.shape[2])
        level = np.empty(codes.shape[:2], np.float32)
        for f, model in enumerate(known.models):
            of_fold = _encoded(partial(codes_of_images, model), self._images, every)
            codes[f], level[f] = of_fold, self._levels(of_fold, known.captions[f])
        return codes, level

    @cached_property
    def _reference(self) -> tuple[Float[np.ndarray, " steps"], float, float, float]:
        """Density ratio and AUROC of the reference, the median at random, and the spread."""
        rng, matched, random = np.random.default_rng(self.seed), [], []
        for images, captions in zip(self._known.images, self._known.captions, strict=True):
            scaled, count = images @ captions.T / self._known.temperature, len(images)
            others = scaled.copy()
            np.fill_diagonal(others, -np.inf)
            x = scaled - (_log_mean_exp(others)[:, None] + _log_mean_exp(others.T)) / 2
            x -= np.log(count / (count - 1))
            matched.append(np.diag(x))
            row = np.arange(count)[:, None]
            random.append(x[row, (row + rng.integers(1, count, (count, _DRAWS))) % count].ravel())
        null = np.sort(np.concatenate(random))
        ratios, _, auroc = density_ratio(np.concatenate(matched), null, null)
        spread = 1 - float((self._known.images.mean(axis=1) ** 2).sum(axis=1).mean())
        return ratios, auroc, float(np.median(null)), spread

    def _levels(
        self, codes: Float32[np.ndarray, "n c"], references: Float32[np.ndarray, "R c"]
    ) -> Float32[np.ndarray, " n"]:
        blocks = (codes[start : start + BLOCK] for start in range(0, len(codes), BLOCK))
        scaled = (x @ references.T / self._known.temperature for x in blocks)
        return np.concatenate([np.zeros(0, np.float32), *map(_log_mean_exp, scaled)])


def _log_mean_exp(scaled: Float[np.ndarray, "n R"]) -> Float32[np.ndarray, " n"]:
    highest = scaled.max(axis=1)
    means = np.exp(scaled - highest[:, None]).mean(axis=1)
    return (np.log(means) + highest).astype(np.float32)


def _encoded(
    encode: Callable[[np.ndarray], np.ndarray], vectors: Rows, rows: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, "n c"]:
    starts = range(0, max(len(rows), 1), BLOCK)
    blocks = (vectors[rows[start : start + BLOCK]] for start in starts)
    return np.concatenate([encode(np.asarray(block, np.float32)) for block in blocks])
