"""A trained model in use: encode images and captions, score them, search."""

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from l2rm_jax.console import clock, progress_bar
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.evaluation.scoring import ignore_progress
from l2rm_jax.retriever import sources, top
from l2rm_jax.retriever.encodings import (
    EncodedCaptions,
    EncodedImages,
    Encodings,
    Maker,
    open_encodings,
)
from l2rm_jax.retriever.hits import Hits
from l2rm_jax.retriever.network import Network
from l2rm_jax.retriever.sources import Captions, Images

_BLOCK = 1024  # of a gallery that heads without vectors score at once
_SLOW = 5.0  # seconds from which a search says beforehand how long it takes

E = TypeVar("E", bound=Encodings)
_log = logging.getLogger(__name__)


class Retriever:
    """A trained model, or the mean of several, ready to encode and search. See `load`.

    Attributes:
      name: the runs or files that it was loaded from.
      head: head of the model; of several, all of them: `sgr + saf`.
      maker: what its encodings know of it.
      data_config: the section `data` of the (first) run's config.
    """

    def __init__(self, networks: Sequence[Network], data_config: ConfigDict):
        self._networks = tuple(networks)
        self.data_config = data_config
        self.name = " + ".join(dict.fromkeys(network.name for network in networks))
        prints = [network.fingerprint for network in networks]
        joined = hashlib.blake2b("".join(prints).encode(), digest_size=8).hexdigest()
        self.maker = Maker(
            self.name,
            prints[0] if len(prints) == 1 else joined,
            tuple(network.head for network in networks),
            tuple(network.metric for network in networks),
        )
        self.head = self.maker.head

    def __repr__(self) -> str:
        return f"Retriever({self.title})"

    @property
    def title(self) -> str:
        """What it is, in a line: `runs/mine: vse, l2rm, epoch 12 (best), rSum 301.4`."""
        return "; ".join(f"{network.name}: {network.title}" for network in self._networks)

    @property
    def in_words(self) -> bool:
        """Whether it takes captions as text, not as vectors."""
        return all(network.vocabulary is not None for network in self._networks)

    def encode_images(
        self,
        images: Images,
        region_counts: Int[np.ndarray, " N"] | None = None,
        *,
        ids: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> EncodedImages:
        """Encode images, of which the features were made as those of the training images.

        Args:
          images: features `[N, R, D]` or `[N, D]`, float16, float32 or float64, in memory or
            memory-mapped; or `"DIR:split"`, a split on disk (`DIR` alone is its split "test").
          region_counts: number of regions of each image, 1 to R, where sets differ; rows after them
            are ignored. None: R each.
          ids: what you call each image; None: the number of its row. A directory has its own.
          progress: False shows none; else a bar on a terminal after 2 seconds, lines elsewhere.

        Raises:
          DataError: no rows, features of another shape or not finite, or unreadable files.

        Example:
          >>> retriever = l2rm_jax.load("runs/mine")
          >>> retriever.encode_images(np.load("regions.npy"), ids=paths)
          EncodedImages(1,000 images, vse, 256 numbers)
        """
        source = sources.image_source(images, region_counts, ids, self.data_config)
        with _progress(len(source.ids) * len(self._networks), "encoding images", progress) as done:
            parts = tuple(network.encode_images(source.items, done) for network in self._networks)
        return EncodedImages(self.maker, parts, source.ids, source.texts, source.items)

    def encode_captions(
        self,
        captions: Captions,
        *,
        ids: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> EncodedCaptions:
        """Encode captions: text, or vectors where the model was trained on vectors.

        None is clipped. Captions of which no word is known are named in a warning.

        Args:
          captions: a text, several texts, or vectors `[N, D]` or `[N, L, D]`.
          ids: what you call each caption; None: the number of its row.
          progress: as in `encode_images`.

        Raises:
          DataError: none, an empty one, text where the model takes vectors or the other way round.

        Example:
          >>> retriever.encode_captions(["a dog on a beach", "two red balls"])
          EncodedCaptions(2 captions, vse, 256 numbers)
        """
        source = sources.caption_source(captions, ids)
        total = len(source.ids) * len(self._networks)
        with _progress(total, "encoding captions", progress) as done:
            parts = tuple(
                network.encode_captions(network.tokens_of(source.items), done)
                for network in self._networks
            )
        return EncodedCaptions(self.maker, parts, source.ids, source.texts, source.items)

    def similarity(
        self, images: EncodedImages, captions: EncodedCaptions
    ) -> Float[np.ndarray, "I J"]:
        """Similarity of every image with every caption, as evaluation computes it; float32.

        Images are always in rows. Of several models, the mean of their similarities.

        Raises:
          ConfigError: encodings of another model, or not images first and captions second.

        Example:
          >>> retriever.similarity(gallery, retriever.encode_captions("a dog on a beach")).shape
          (1000, 1)
        """
        self._check(images, EncodedImages, "images")
        self._check(captions, EncodedCaptions, "captions")
        total = len(images) * len(captions) * len(self._networks)
        with _progress(total, "scoring", None, unit="pairs") as done:
            return self._similarity(images, captions, done)

    def _similarity(
        self, images: EncodedImages, captions: EncodedCaptions, done: Callable[[int], None]
    ) -> Float[np.ndarray, "I J"]:
        parts = zip(self._networks, images.parts, captions.parts, strict=True)
        first, *others = (
            network.similarity(image_part, caption_part, done)
            for network, image_part, caption_part in parts
        )
        return sum(others, first) / len(self._networks) if others else first

    def search(
        self,
        queries: Encodings | Captions,
        gallery: Encodings | Images,
        top_k: int = 10,
        *,
        proposer: "Retriever | None" = None,
        candidates: int = 100,
    ) -> Hits:
        """Find the images that fit captions best, or the captions that fit images best.

        The types give the direction. The result is exact. Heads with vectors compare them block by
        block, so the gallery may be a mapped file of any size. Heads that compare words with
        regions score all pairs, and say beforehand how long that takes; with a `proposer`, only
        the candidates that it proposes.

        Args:
          queries: encoded captions or images; or texts, which are encoded here.
          gallery: what is searched: encoded images or captions; or an array or `"DIR:split"` of
            images, which are encoded here.
          top_k: how many to find for each query, cut to the size of the gallery.
          proposer: a retriever with vectors, which proposes candidates for each query.
          candidates: how many it proposes; `top_k` at least.

        Returns:
          The hits of each query; always two-dimensional, also for one query.

        Raises:
          ConfigError: both are of the same kind, encodings of another model, `top_k` below 1, or a
            proposer without vectors, or for encodings that were read from a file.
          DataError: an empty query, or a gallery without rows.

        Example:
          >>> gallery = retriever.encode_images("data/mine:test")
          >>> print(retriever.search(["a dog on a beach"], gallery, top_k=2))
          a dog on a beach
            1  0.612  photos/0417.jpg  two dogs run along the shore
            2  0.587  photos/0093.jpg  a brown dog shakes off water
        """
        if top_k < 1:
            raise ConfigError(f"top_k: {top_k}, expected at least 1")
        if not isinstance(queries, Encodings):
            queries = self.encode_captions(queries)
        if not isinstance(gallery, Encodings):
            gallery = self.encode_images(gallery)
        if type(queries) is type(gallery):
            raise ConfigError(
                f"search: queries and gallery are both {gallery.kind}, expected images and "
                "captions; vectors() lets you compare those of one kind"
            )
        for encodings in (queries, gallery):
            self._check(encodings, type(encodings), encodings.kind)
            if not len(encodings):
                raise DataError(f"search: found no {encodings.kind}, expected at least one")
        k = min(top_k, len(gallery))
        if proposer is not None:
            rows, scores = self._search_proposed(queries, gallery, k, proposer, candidates)
        elif gallery.metric:
            rows, scores = self._search_vectors(queries, gallery, k)
        else:
            rows, scores = self._search_all(queries, gallery, k)
        return _hits(queries, gallery, rows, scores)

    def _search_vectors(
        self, queries: Encodings, gallery: Encodings, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        with _progress(len(gallery), "searching", None) as done:
            parts = list(queries.parts), list(gallery.parts)
            return top.top_of_vectors(*parts, gallery.metric, k, done)

    def _search_all(
        self, queries: Encodings, gallery: Encodings, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score all pairs, a block of the gallery at a time; says how long that takes if long."""
        total = len(queries) * len(gallery)
        with _progress(total * len(self._networks), "scoring", None, unit="pairs") as done:

            def blocks() -> Iterator[tuple[int, np.ndarray]]:
                for start in range(0, len(gallery), _BLOCK):
                    began = time.monotonic()
                    block = gallery[start : start + _BLOCK]
                    yield start, self._oriented(queries, block, done)
                    if start == _BLOCK:  # the first one compiled
                        left = len(gallery) - 2 * _BLOCK
                        seconds = (time.monotonic() - began) * left / _BLOCK
                        if seconds > _SLOW:
                            _log.info(
                                "%s scores all %s pairs: about %s more; a proposer= is faster",
                                self.head,
                                f"{total:,}",
                                clock(seconds),
                            )

            return top.top_of_blocks(blocks(), k)

    def _oriented(
        self, queries: Encodings, gallery: Encodings, done: Callable[[int], None]
    ) -> Float[np.ndarray, "Q n"]:
        """Similarities of queries (rows) with a gallery (columns)."""
        if isinstance(gallery, EncodedImages):
            return self._similarity(gallery, queries, done).T
        return self._similarity(queries, gallery, done)

    def _search_proposed(
        self, queries: Encodings, gallery: Encodings, k: int, proposer: "Retriever", candidates: int
    ) -> tuple[np.ndarray, np.ndarray]:
        if candidates < k:
            raise ConfigError(f"candidates: {candidates}, expected at least top_k={k}")
        if not all(proposer.maker.metrics):
            raise ConfigError(
                f"proposer: {proposer.name} has the head {proposer.head}, expected one with vectors"
            )
        own_queries, own_gallery = map(proposer._encode_again, (queries, gallery))
        proposed = proposer.search(own_queries, own_gallery, candidates).rows
        pairs = np.stack([np.repeat(np.arange(len(queries)), proposed.shape[1]), proposed.ravel()])
        by_image = pairs if isinstance(queries, EncodedImages) else pairs[::-1]
        images, captions = sorted((queries, gallery), key=lambda x: x.kind == EncodedCaptions.kind)
        used, own_rows = np.unique(
            by_image[0], return_inverse=True
        )  # of galleries, few are proposed
        used_captions, own_captions = np.unique(by_image[1], return_inverse=True)
        images, captions = images[used], captions[used_captions]
        rows = np.stack([own_rows, own_captions], axis=1)
        parts = zip(self._networks, images.parts, captions.parts, strict=True)
        scores = sum(network.pair_similarities(*both, rows) for network, *both in parts)
        scores = np.reshape(scores / len(self._networks), proposed.shape).astype(np.float32)
        return top.sort_columns(proposed, scores, k)

    def _encode_again(self, encodings: Encodings) -> Encodings:
        """What another retriever encoded, encoded by this one."""
        if encodings.source is None:
            raise ConfigError(
                f"proposer: the {encodings.kind} were read from a file, expected encodings of this "
                "process, as the proposer encodes them too"
            )
        if isinstance(encodings, EncodedImages):
            with _progress(len(encodings), "encoding images", None) as done:
                parts = tuple(x.encode_images(encodings.source, done) for x in self._networks)
            return EncodedImages(self.maker, parts, encodings.ids)
        with _progress(len(encodings), "encoding captions", None) as done:
            parts = tuple(
                x.encode_captions(x.tokens_of(encodings.source), done) for x in self._networks
            )
        return EncodedCaptions(self.maker, parts, encodings.ids)

    def open(self, path: str | Path) -> EncodedImages | EncodedCaptions:
        """Open encodings that `save` wrote; their arrays stay in the files, memory-mapped.

        Raises:
          DataError: the directory holds no encodings, or damaged ones.
          ConfigError: another model made them.
        """
        encodings = open_encodings(path)
        self._check(encodings, type(encodings), str(path))
        return encodings

    def _check(self, encodings: Encodings, kind: type[Encodings], name: str) -> None:
        if not isinstance(encodings, kind):
            found = getattr(encodings, "kind", type(encodings).__name__)
            raise ConfigError(f"{name}: found {found}, expected encoded {kind.kind}")
        if encodings.maker.fingerprint != self.maker.fingerprint:
            raise ConfigError(
                f"{name}: encoded by {encodings.maker.name} ({encodings.maker.fingerprint}), "
                f"expected encodings of {self.name} ({self.maker.fingerprint})"
            )


@contextlib.contextmanager
def _progress(
    total: int, description: str, progress: bool | None, unit: str = "rows"
) -> Iterator[Callable[[int], None]]:
    """Show progress unless `progress` is False; yields what is called with the work done."""
    if progress is False:
        yield ignore_progress
        return
    with progress_bar(total, description, unit=unit) as bar:
        yield bar.update


def _hits(queries: Encodings, gallery: Encodings, rows: np.ndarray, scores: np.ndarray) -> Hits:
    texts = gallery.texts
    return Hits(
        queries=list(
            queries.texts if isinstance(queries, EncodedCaptions) and queries.texts else queries.ids
        ),
        rows=rows,
        ids=[[gallery.ids[row] for row in found] for found in rows],
        scores=scores,
        texts=None if texts is None else [[texts[row] for row in found] for found in rows],
    )
