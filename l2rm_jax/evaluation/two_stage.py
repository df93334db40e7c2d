"""Two-stage scoring: a head of one product proposes candidates, another head ranks only those.

For each query the k proposed candidates come first, in the order of the second head, and all others
after them in the order of the proposer. Nothing here grows with images x captions: NumPy only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.recall import BLOCK, PROTOCOLS, WAYS, mean_row, parse_protocols, rank_row


@dataclass(frozen=True)
class Proposals:
    """What a proposer finds for each query.

    Attributes:
      candidates: rows of the K that it scores highest, best first; ties as in `recall`.
      matches: which of these are true matches.
      ranks: place (0 = first) of the best placed true match among all candidates.
    """

    candidates: Int[np.ndarray, "Q K"]
    matches: Bool[np.ndarray, "Q K"]
    ranks: Int[np.ndarray, " Q"]

    @classmethod
    def of(
        cls,
        queries: Float[np.ndarray, "Q D"],
        candidates: Float[np.ndarray, "C D"],
        query_image: Int[np.ndarray, " Q"],
        candidate_image: Int[np.ndarray, " C"],
        k: int,
    ) -> "Proposals":
        """The best k (at most all) by the products of the vectors, some queries at a time.

        A candidate of a query's image is a true match; each query has at least one.
        """
        found = []
        for start in range(0, len(queries), BLOCK):
            sims = queries[start : start + BLOCK] @ candidates.T
            own = candidate_image == query_image[start : start + BLOCK, None]
            best = _best(sims, min(k, len(candidates)))
            found.append((best, np.take_along_axis(own, best, axis=1), _first_rank(sims, own)))
        return cls(*map(np.concatenate, zip(*found, strict=True)))

    def rerank(self, scores: Float[np.ndarray, "Q K"], k: int) -> Int[np.ndarray, " Q"]:
        """Ranks of the best placed true matches with the first k candidates ordered by score."""
        matches = self.matches[:, :k]
        order = np.lexsort((self.candidates[:, :k], scores[:, :k]))[:, ::-1]
        matches = np.take_along_axis(matches, order, axis=1)
        return np.where(matches.any(1), matches.argmax(1), self.ranks)

    def lost(self, k: int) -> float:
        """Percent of the queries that have no true match among their first k candidates."""
        return 100.0 * float(np.mean(~self.matches[:, :k].any(1)))


def _best(sims: Float[np.ndarray, "Q C"], k: int) -> Int[np.ndarray, "Q K"]:
    """The k highest of each row, best first, of equal ones the last; no row is sorted whole."""
    least = np.partition(sims, -k, axis=1)[:, -k, None]
    above, equal = sims > least, sims == least
    room = k - np.count_nonzero(above, axis=1, keepdims=True)
    chosen = above | (equal & (np.cumsum(equal[:, ::-1], axis=1)[:, ::-1] <= room))
    best = np.nonzero(chosen)[1].reshape(-1, k)
    order = np.argsort(np.take_along_axis(sims, best, axis=1), axis=1, kind="stable")[:, ::-1]
    return np.take_along_axis(best, order, axis=1)


def _first_rank(sims: Float[np.ndarray, "Q C"], own: Bool[np.ndarray, "Q C"]) -> np.ndarray:
    """How many candidates come before the best placed of a query's own ones."""
    last = sims.shape[1] - 1
    first = last - np.argmax(np.where(own, sims, -np.inf)[:, ::-1], axis=1)[:, None]
    score = np.take_along_axis(sims, first, axis=1)
    before = (sims > score) | ((sims == score) & (np.arange(last + 1) > first))
    return np.count_nonzero(before, axis=1)


class _Way(NamedTuple):
    """Proposals for the images, or for the captions, of a fold, and a number for each pair."""

    proposals: Proposals
    keys: Int[np.ndarray, "Q K"]  # image row x captions of the split + caption row


class Shortlist:
    """The pairs that a proposer leaves for the second head to score, and the recalls they give.

    Args:
      images: the proposer's vectors of the test images.
      texts: of the captions.
      caption_image: the image of each caption.
      protocols: as `recall.parse_protocols` takes them; proposals are made within a fold.
      top_k: how many candidates of a query are scored; several for several tables.

    Raises:
      ConfigError: a `top_k` below 1.
    """

    def __init__(
        self,
        images: Float[np.ndarray, "I D"],
        texts: Float[np.ndarray, "M D"],
        caption_image: Int[np.ndarray, " M"],
        protocols: str,
        top_k: Sequence[int],
    ):
        if min(top_k, default=0) < 1:
            raise ConfigError(f"--top_k: {list(top_k)}, expected numbers of candidates, at least 1")
        self._top_k, self._captions = top_k, len(texts)
        self._folds = {
            name: list(_folds(images, texts, caption_image, PROTOCOLS[name].folds, max(top_k)))
            for name in parse_protocols(protocols)
        }
        keys = [way.keys for folds in self._folds.values() for ways in folds for way in ways]
        self._pairs = np.unique(np.concatenate([key.ravel() for key in keys]))

    @property
    def pairs(self) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
        """Image and caption row of each pair to score, each pair once."""
        return np.divmod(self._pairs, self._captions)

    def rows(self, scores: Float[np.ndarray, " P"]) -> dict[str, dict[str, float]]:
        """Rows of the result table by k and protocol.

        A row is that of `recall.recalls` with `i2t_lost` and `t2i_lost`: the percentage of queries
        whose true matches the proposer all left out, which no second head can bring back.

        Args:
          scores: of `pairs`.
        """
        return {
            f"top {k}, {name}": mean_row([self._row(ways, scores, k) for ways in folds])
            for k in self._top_k
            for name, folds in self._folds.items()
        }

    def _row(self, ways: Sequence[_Way], scores: np.ndarray, k: int) -> dict[str, float]:
        ranks, lost = [], {}
        for name, (proposals, keys) in zip(WAYS, ways, strict=True):
            own = scores[np.searchsorted(self._pairs, keys)]
            ranks.append(proposals.rerank(own, k))
            lost[f"{name}_lost"] = proposals.lost(k)
        return {**rank_row(*ranks), **lost}


def _folds(
    images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray, folds: int, k: int
) -> Iterator[tuple[_Way, _Way]]:
    for rows in np.split(np.arange(len(images)), folds):
        columns = np.flatnonzero((caption_image >= rows[0]) & (caption_image <= rows[-1]))
        owner = caption_image[columns]
        of_images = Proposals.of(images[rows], texts[columns], rows, owner, k)
        of_captions = Proposals.of(texts[columns], images[rows], owner, rows, k)
        yield (
            _Way(of_images, rows[:, None] * len(texts) + columns[of_images.candidates]),
            _Way(of_captions, rows[of_captions.candidates] * len(texts) + columns[:, None]),
        )
