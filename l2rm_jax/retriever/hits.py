"""Results of a search: rows, ids and scores, as arrays, a table, JSON or a page."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data.text import tokenize
from l2rm_jax.errors import expand_home
from l2rm_jax.pages import PageAlignment, PageHit, PageQuery, write_page
from l2rm_jax.retriever.encodings import EncodedCaptions, EncodedImages, Encodings


class Hit(NamedTuple):
    """A found image or caption.

    Attributes:
      rank: its rank, from 1.
      row: its row in the gallery.
      id: the user's id.
      score: its similarity with the query.
      text: the caption; for an image, the stored caption that shares the most words with the query.
        None without captions.
    """

    rank: int
    row: int
    id: str
    score: float
    text: str | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Hits:
    """The k best of a gallery for each query, best first. Ties are ordered by row.

    `hits[q]` is the list of `Hit` of query q, `len(hits)` the number of queries, and
    `print(hits)` shows a table.

    Attributes:
      asked: the encoded queries.
      gallery: the searched gallery.
      rows: row of each hit in the gallery.
      scores: similarity of each hit with its query, float32.
      align: returns the weights of matching words and regions for query q and gallery row r; None
        if the head has no alignment.

    Example:
      >>> hits = retriever.search(["two red balls"], gallery, top_k=3)
      >>> hits.rows
      array([[417,  93, 218]])
      >>> hits[0][0]
      Hit(rank=1, row=417, id='photos/0417.jpg', score=0.612, text='two red balls')
    """

    asked: Encodings
    gallery: Encodings
    rows: Int[np.ndarray, "Q k"]
    scores: Float[np.ndarray, "Q k"]
    align: Callable[[int, int], PageAlignment] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    @overload
    def __getitem__(self, query: int) -> list[Hit]: ...

    @overload
    def __getitem__(self, query: slice) -> list[list[Hit]]: ...

    def __getitem__(self, query: int | slice) -> list[Hit] | list[list[Hit]]:
        if isinstance(query, slice):
            return [self[row] for row in range(len(self))[query]]
        found = zip(self.rows[query], self.scores[query], strict=True)
        return [
            Hit(
                rank,
                int(row),
                self.gallery.ids[row],
                round(float(score), 6),
                self._text(query, int(row)),
            )
            for rank, (row, score) in enumerate(found, start=1)
        ]

    def _text(self, query: int, row: int) -> str | None:
        """Choose the text to show for a row of the gallery as a hit of a query."""
        captions = getattr(self.gallery, "captions", None)
        if captions is None or self.asked.texts is None:
            return None if self.gallery.texts is None else self.gallery.texts[row]
        asked = set(tokenize(self.asked.texts[query]))

        def overlap(caption: str) -> float:
            words = set(tokenize(caption))
            return len(asked & words) / max(1, len(asked | words))

        return max(captions[row], key=overlap)

    def __repr__(self) -> str:
        return f"Hits({len(self):,} queries, {self.rows.shape[1]:,} each)"

    @property
    def queries(self) -> Sequence[str]:
        """The queries: texts, or the ids of images."""
        in_words = isinstance(self.asked, EncodedCaptions) and self.asked.texts is not None
        return self.asked.texts if in_words else self.asked.ids

    @property
    def ids(self) -> list[list[str]]:
        """The user's id of each hit, `[Q][k]`."""
        return [[self.gallery.ids[row] for row in rows] for rows in self.rows]

    def __str__(self) -> str:
        """Format a table: the hits below each query, with rank, score, id and caption."""
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
        """Format as JSON: a list with `query` and `hits` (rank, row, id, score, text)."""
        found = [
            {"query": query, "hits": [hit._asdict() for hit in hits]}
            for query, hits in zip(self.queries, self, strict=True)
        ]
        return json.dumps(found, ensure_ascii=False, indent=2)

    def to_html(
        self, path: str | Path, picture: Callable[[EncodedImages, int], Path | None] | None = None
    ) -> None:
        """Write a self-contained page with the hits, their pictures and scores.

        Heads that compare words with regions also show the matches.

        Args:
          path: the file, which must not exist.
          picture: finds the picture of a row of encoded images. None: the file that the id names,
            in the directory that the data came from.

        Raises:
          ConfigError: `path` exists already.
        """
        picture = picture or EncodedImages.picture
        pages = []
        for number, (query, hits) in enumerate(zip(self.queries, self, strict=True)):
            found = [self._page_hit(number, hit, picture) for hit in hits]
            pages.append(PageQuery(query, found, _picture(self.asked, number, picture)))
        kinds = f"{len(self.gallery):,} {self.gallery.kind}"
        title = self.queries[0] if len(self) == 1 else f"{len(self):,} searches"
        write_page(
            expand_home(path), pages, title=title, subtitle=f"{kinds}, {self.gallery.maker.name}"
        )

    def _page_hit(self, query: int, hit: Hit, picture: Callable) -> PageHit:
        shown = _picture(self.gallery, hit.row, picture)
        alignment = self.align and self.align(query, hit.row)
        return PageHit(hit.rank, hit.score, hit.id, hit.text, shown, alignment)


def _picture(encodings: Encodings, row: int, picture: Callable) -> Path | None:
    return picture(encodings, row) if isinstance(encodings, EncodedImages) else None


def _line(text: str) -> str:
    """Reduce a text to one line without control characters, which could affect a terminal."""
    return "".join(x if x.isprintable() else " " for x in text)
