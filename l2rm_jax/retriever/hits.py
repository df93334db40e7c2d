"""What a search returns: rows, ids and scores, as arrays, a table, JSON or a page."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Hit(NamedTuple):
    """A found image or caption.

    Attributes:
      rank: its place, from 1.
      row: its row in the gallery.
      id: what the user calls it.
      score: its similarity with the query.
      text: the caption, or a caption of the image; None without.
    """

    rank: int
    row: int
    id: str
    score: float
    text: str | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Hits:
    """The k best of a gallery for each query, best first. Of equal scores, the lower row is first.

    `hits[q]` is the list of `Hit` of query q, `len(hits)` the number of queries, and
    `print(hits)` shows a table.

    Attributes:
      queries: what was asked: texts, or ids.
      rows: row of each hit in the gallery.
      ids: what the user calls each hit.
      scores: similarity of each hit with its query, float32.
      texts: captions of the hits; None without.

    Example:
      >>> hits = retriever.search(["two red balls"], gallery, top_k=3)
      >>> hits.rows
      array([[417,  93, 218]])
      >>> hits[0][0]
      Hit(rank=1, row=417, id='photos/0417.jpg', score=0.612, text='two red balls')
    """

    queries: Sequence[str]
    rows: Int[np.ndarray, "Q k"]
    ids: Sequence[Sequence[str]]
    scores: Float[np.ndarray, "Q k"]
    texts: Sequence[Sequence[str]] | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def __getitem__(self, query: int) -> list[Hit]:
        texts = [None] * self.rows.shape[1] if self.texts is None else self.texts[query]
        found = zip(self.rows[query], self.ids[query], self.scores[query], texts, strict=True)
        return [
            Hit(rank, int(row), id_, round(float(score), 6), text)
            for rank, (row, id_, score, text) in enumerate(found, start=1)
        ]

    def __repr__(self) -> str:
        return f"Hits({len(self):,} queries, {self.rows.shape[1]:,} each)"

    def __str__(self) -> str:
        """A table: below each query its hits, with rank, score, id and caption."""
        width = max((len(id_) for ids in self.ids for id_ in ids), default=0)
        digits = len(str(self.rows.shape[1]))
        lines = []
        for query, hits in zip(self.queries, self, strict=True):
            lines.append(_line(query))
            for hit in hits:
                text = "" if hit.text in (None, hit.id) else _line(hit.text)
                id_ = _line(hit.id).ljust(width if text else 0)
                lines.append(f"  {hit.rank:{digits}}  {hit.score:.3f}  {id_}  {text}".rstrip())
        return "\n".join(lines)

    def to_json(self) -> str:
        """The hits as JSON: a list with `query` and `hits` (rank, row, id, score, text) of each."""
        found = [
            {"query": query, "hits": [hit._asdict() for hit in hits]}
            for query, hits in zip(self.queries, self, strict=True)
        ]
        return json.dumps(found, ensure_ascii=False, indent=2)


def _line(text: str) -> str:
    """A text on one line, without control characters, which could change a terminal."""
    return "".join(x if x.isprintable() else " " for x in text)
