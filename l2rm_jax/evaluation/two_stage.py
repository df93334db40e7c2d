"""Two-stage scoring: one head proposes k candidates per query, and a second head reorders them.

The proposer's head scores by a product of vectors, so proposing is cheap. In a query's ranking the
k candidates come first, ordered by the second head; all others follow in the proposer's order. No
array holds images x captions scores at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.protocols import PROTOCOLS, parse_protocols
from l2rm_jax.evaluation.recall import (
    DIRECTIONS,
    QUERY_BLOCK,
    mean_row,
    ranks_of,
    recalls_from_ranks,
)


@dataclass(frozen=True)
class Proposals:
    """A proposer's k best candidates for each query, and the rank of its true match.

    Attributes:
      candidates: rows of the k candidates with the highest scores, best first; ties as in
        `recall`.
      matches: whether each of them is a true match.
      ranks: rank (0 = first) of the query's best true match among all candidates.
    """

    candidates: Int[np.ndarray, "Q K"]
    matches: Bool[np.ndarray, "Q K"]
    ranks: Int[np.ndarray, " Q"]

    @classmethod
    def from_vectors(
        cls,
        queries: Float[np.ndarray, "Q D"],
        candidates: Float[np.ndarray, "C D"],
        query_image: Int[np.ndarray, " Q"],
        candidate_image: Int[np.ndarray, " C"],
        k: int,
    ) -> "Proposals":
        """Propose the k candidates (or all, if fewer) with the highest dot products.

        Args:
          queries: vector of each query.
          candidates: vector of each candidate.
          query_image: image of each query.
          candidate_image: image of each candidate. A candidate is a true match of the queries
            with the same image; every query needs at least one.
          k: number of candidates per query.
        """
        blocks = []
        for start in range(0, len(queries), QUERY_BLOCK):
            rows = slice(start, start + QUERY_BLOCK)
            sims = queries[rows] @ candidates.T
            own = candidate_image == query_image[rows, None]
            # Both find the first maximum; reversed, it is the last, which ranks first (`recall`).
            _, columns = jax.lax.top_k(sims[:, ::-1], min(k, len(candidates)))
            best = len(candidates) - 1 - np.asarray(columns)
            match = np.argmax(np.where(own, sims, -np.inf)[:, ::-1], axis=1)
            ranks = ranks_of(sims, len(candidates) - 1 - match)
            blocks.append((best, np.take_along_axis(own, best, axis=1), ranks))
        return cls(*map(np.concatenate, zip(*blocks, strict=True)))

    def rerank(self, scores: Float[np.ndarray, "Q K"], k: int) -> Int[np.ndarray, " Q"]:
        """Rank of each query's best true match after its first k candidates are reordered.

        Args:
          scores: the second head's score of each candidate.
          k: number of candidates to reorder.
        """
        matches = self.matches[:, :k]
        order = np.lexsort((self.candidates[:, :k], scores[:, :k]))[:, ::-1]
        matches = np.take_along_axis(matches, order, axis=1)
        return np.where(matches.any(1), matches.argmax(1), self.ranks)

    def percent_lost(self, k: int) -> float:
        """Percent of the queries without a true match among their first k candidates."""
        return 100.0 * float(np.mean(~self.matches[:, :k].any(1)))


# Proposals in one direction, and their pair numbers: image row * captions of split + caption row.
_Direction = tuple[Proposals, Int[np.ndarray, "Q K"]]


class Shortlist:
    """Pairs proposed for a second head to score, and the resulting recalls.

    Args:
      images: the proposer's vectors of the test images.
      texts: its vectors of the test captions.
      caption_image: the image of each caption.
      protocols: as `parse_protocols` takes them; candidates are proposed within a fold.
      counts: numbers of candidates per query that the second head reorders, one per row of the
        table.

    Raises:
      ConfigError: `counts` is empty or holds a number below 1.
    """

    def __init__(
        self,
        images: Float[np.ndarray, "I D"],
        texts: Float[np.ndarray, "M D"],
        caption_image: Int[np.ndarray, " M"],
        protocols: str,
        counts: Sequence[int],
    ):
        if min(counts, default=0) < 1:
            raise ConfigError(f"candidates: found {list(counts)}, expected numbers >= 1")
        self._counts, self._captions = counts, len(texts)
        self._folds = {
            name: list(_propose(images, texts, caption_image, PROTOCOLS[name].folds, max(counts)))
            for name in parse_protocols(protocols)
        }
        folds = chain(*self._folds.values())
        keys = [keys.ravel() for directions in folds for _, keys in directions]
        self._pairs = np.unique(np.concatenate(keys))

    @property
    def pairs(self) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
        """Image rows and caption rows of the pairs to score, each pair once."""
        return np.divmod(self._pairs, self._captions)

    def rows(self, scores: Float[np.ndarray, " P"]) -> dict[str, dict[str, float]]:
        """Rows of the result table, one for each count of candidates and protocol.

        A row has the keys of `recall.recalls`, and `i2t_lost` and `t2i_lost`: the percentage of
        queries whose true matches are all missing from the candidates, so that the second head
        cannot bring them back.

        Args:
          scores: the second head's scores of `pairs`.
        """
        return {
            f"top {k}, {name}": mean_row([self._fold_row(fold, scores, k) for fold in folds])
            for k in self._counts
            for name, folds in self._folds.items()
        }

    def _fold_row(self, fold: Sequence[_Direction], scores: np.ndarray, k: int) -> dict[str, float]:
        ranks, lost = [], {}
        for direction, (proposals, keys) in zip(DIRECTIONS, fold, strict=True):
            candidate_scores = scores[np.searchsorted(self._pairs, keys)]
            ranks.append(proposals.rerank(candidate_scores, k))
            lost[f"{direction}_lost"] = proposals.percent_lost(k)
        return {**recalls_from_ranks(*ranks), **lost}


def _propose(
    images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray, folds: int, k: int
) -> Iterator[tuple[_Direction, _Direction]]:
    """Proposals of each fold: captions for its images, then images for its captions."""
    for rows in np.split(np.arange(len(images)), folds):
        columns = np.flatnonzero((caption_image >= rows[0]) & (caption_image <= rows[-1]))
        owner = caption_image[columns]
        i2t = Proposals.from_vectors(images[rows], texts[columns], rows, owner, k)
        t2i = Proposals.from_vectors(texts[columns], images[rows], owner, rows, k)
        yield (
            (i2t, rows[:, None] * len(texts) + columns[i2t.candidates]),
            (t2i, rows[t2i.candidates] * len(texts) + columns[:, None]),
        )
