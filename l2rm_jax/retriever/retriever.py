"""Use a trained model: encode images and captions, score them, search."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from l2rm_jax.console import progress_bar
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.errors import ConfigError, DataError, expand_home
from l2rm_jax.evaluation.scoring import ignore_progress
from l2rm_jax.pages import PageAlignment
from l2rm_jax.pretrained.preparation import Preparation
from l2rm_jax.retriever import search, sources
from l2rm_jax.retriever.encodings import (
    EncodedCaptions,
    EncodedImages,
    Encodings,
    Maker,
    open_encodings,
)
from l2rm_jax.retriever.hits import Hits
from l2rm_jax.retriever.network import CaptionPart, ImagePart, Network
from l2rm_jax.retriever.sources import (
    Captions,
    Images,
    check_encoder,
    encode_pictures,
    encode_texts,
)


class Retriever:
    """A trained model, or the mean of several, ready to encode and search. See `load`.

    Attributes:
      name: the runs or files that it was loaded from.
      head: head of the model, or all heads of an ensemble: `sgr + saf`.
      maker: its description, which its encodings carry.
      data_config: the section `data` of the (first) run's config.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        data_config: ConfigDict,
        encoder: Mapping[str, Any] | None = None,
        save: Callable[[str | Path], None] | None = None,
    ):
        self._networks, self._save = tuple(networks), save
        self.data_config, self._encoder = data_config, encoder
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
        """Describe the model in a line: `runs/mine: vse, l2rm, epoch 12 (best), rSum 301.4`."""
        return "; ".join(f"{network.name}: {network.title}" for network in self._networks)

    @property
    def in_words(self) -> bool:
        """Whether it takes captions as text, not as vectors."""
        return all(network.vocabulary is not None for network in self._networks)

    @property
    def preparation(self) -> Preparation | None:
        """Preprocessing of pictures; None if its models take features."""
        return self._networks[0].preparation

    def encode_images(
        self,
        images: Images,
        region_counts: Int[np.ndarray, " N"] | Sequence[int] | None = None,
        *,
        ids: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> EncodedImages:
        """Encode images; features must be computed in the same way as for the training images.

        Args:
          images: features `[N, R, D]` or `[N, D]`, float16, float32, float64 or bfloat16, in memory
            (of any library, or a list of rows) or memory-mapped; or `"DIR:split"`, a split on disk
            (`DIR` alone is its split "test"); or Pillow pictures or names of picture files, which
            the encoder of the imported training data encodes. For a model with a pretrained image
            encoder, also pixels `[N, S, S, 3]` as `l2rm import --encoder=pixels:DIR` writes them.
          region_counts: number of regions of each image, 1 to R, if sets differ; rows after them
            are ignored. None: R each.
          ids: your id of each image; None: its row number, or the name of its file. A directory has
            its own ids.
          progress: False disables it; else a bar on a terminal after 2 seconds, lines elsewhere.

        Raises:
          DataError: no rows, features of another shape or not finite, or unreadable files.

        Example:
          >>> retriever = l2rm_jax.load("runs/mine")
          >>> retriever.encode_images(np.load("regions.npy"), ids=paths)
          EncodedImages(1,000 images, vse, 256 numbers)
          >>> retriever.encode_images(["a.jpg", "b.jpg"])
          EncodedImages(2 images, vse, 256 numbers)
        """
        encode = partial(encode_pictures, self._encoder, run=self.name)
        source = sources.image_source(
            images, region_counts, ids, self.data_config, self.preparation, encode
        )
        check_encoder(source.items.name, source.record, self._encoder, self.name)
        parts = self._encode_images(source.items, progress)
        shown = {"texts": source.texts, "captions": source.captions, "folder": source.folder}
        return EncodedImages(self.maker, parts, source.ids, source=source.items, **shown)

    def encode_captions(
        self,
        captions: Captions,
        *,
        ids: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> EncodedCaptions:
        """Encode captions: text, or vectors if the model was trained on vectors.

        Text for such a model is encoded by the encoder of its imported data. No caption is clipped.
        A warning names captions without any known word.

        Args:
          captions: a text, several texts, or vectors `[N, D]` or `[N, L, D]` of any library.
          ids: your id of each caption; None: its row number.
          progress: as in `encode_images`.

        Raises:
          DataError: no caption, an empty caption, text for a model that takes vectors, or the
            reverse.

        Example:
          >>> retriever.encode_captions(["a dog on a beach", "two red balls"])
          EncodedCaptions(2 captions, vse, 256 numbers)
        """
        source = sources.caption_source(captions, ids)
        parts = self._encode_captions(source.items, progress)
        return EncodedCaptions(self.maker, parts, source.ids, source.texts, source.items)

    def similarity(
        self, images: EncodedImages, captions: EncodedCaptions
    ) -> Float[np.ndarray, "I J"]:
        """Similarity of every image with every caption, as evaluation computes it; float32.

        Images are always in rows. The similarities of several models are averaged.

        Raises:
          ConfigError: encodings of another model, or not images first and captions second.

        Example:
          >>> retriever.similarity(gallery, retriever.encode_captions("a dog on a beach")).shape
          (1000, 1)
        """
        self._check(images, EncodedImages, "images")
        self._check(captions, EncodedCaptions, "captions")
        with self._progress(len(images) * len(captions), "scoring", unit="pairs") as done:
            return search.mean_similarity(self._networks, images, captions, done)

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

        The types determine the direction. The result is exact. Heads with vectors compare them
        block by block, so the gallery may be a mapped file of any size. Heads that compare words
        with regions score all pairs, with a progress bar; with a `proposer`, they score only the
        proposed candidates.

        Args:
          queries: encoded captions or images; or texts, which are encoded here.
          gallery: encoded images or captions to search; or an array or `"DIR:split"` of images,
            which are encoded here.
          top_k: number of hits per query, limited to the size of the gallery.
          proposer: a retriever with vectors, which proposes candidates for each query.
          candidates: number of candidates per query; at least `top_k`.

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
        search.check_top_k(top_k)
        if not isinstance(queries, Encodings):
            queries = self.encode_captions(queries)
        if not isinstance(gallery, Encodings):
            gallery = self.encode_images(gallery)
        if type(queries) is type(gallery):
            raise ConfigError(
                f"search: found {gallery.kind} as queries and as gallery, expected images and "
                "captions; to compare encodings of one kind, use vectors()"
            )
        for encodings in (queries, gallery):
            self._check(encodings, type(encodings), encodings.kind)
            if not len(encodings):
                raise DataError(f"search: found no {encodings.kind}, expected at least one")
        k = min(top_k, len(gallery))
        if proposer is not None:
            proposed = self._propose(queries, gallery, k, proposer, candidates)
            with self._progress(proposed.size, "scoring", unit="pairs") as done:
                rows, scores = search.among_proposed(
                    self._networks, queries, gallery, proposed, k, done
                )
        elif gallery.metric:
            with progress_bar(len(gallery), "searching", unit="rows") as bar:
                rows, scores = search.top_of_vectors(
                    queries.parts, gallery.parts, gallery.metric, k, bar.update
                )
        else:
            title = "scoring all; a proposer is faster"
            with self._progress(len(queries) * len(gallery), title, unit="pairs") as done:
                rows, scores = search.among_all(self._networks, queries, gallery, k, done)
        return Hits(queries, gallery, rows, scores, self._aligner(queries, gallery))

    def _aligner(
        self, queries: Encodings, gallery: Encodings
    ) -> Callable[[int, int], PageAlignment] | None:
        """Make the `align` function of the hits; None without an alignment, or for an ensemble."""
        network = self._networks[0]
        if len(self._networks) > 1 or not network.has_alignment:
            return None

        def align(query: int, row: int) -> PageAlignment:
            pair = queries[query], gallery[row]
            images, captions = pair if isinstance(gallery, EncodedCaptions) else pair[::-1]
            text = None if captions.texts is None else captions.texts[0]
            found = network.alignment(images.parts[0], captions.parts[0], text)
            return PageAlignment(*found)

        return align

    def _propose(
        self, queries: Encodings, gallery: Encodings, k: int, proposer: "Retriever", candidates: int
    ) -> Int[np.ndarray, "Q C"]:
        """Rows of the candidates that a proposer has for each query."""
        if candidates < k:
            raise ConfigError(f"candidates: found {candidates}, expected at least top_k={k}")
        if proposer.maker.metric is None:
            raise ConfigError(
                f"proposer: found {proposer.name} with the head {proposer.head}, expected a head "
                "with vectors"
            )
        both = map(proposer._encode_again, (queries, gallery))
        return proposer.search(*both, candidates).rows

    def _encode_again(self, encodings: Encodings) -> Encodings:
        """Encode the source of another retriever's encodings with this one."""
        if encodings.source is None:
            raise ConfigError(
                f"proposer: found {encodings.kind} read from a file, expected encodings of this "
                "process, because the proposer must encode them too"
            )
        if isinstance(encodings, EncodedImages):
            parts = self._encode_images(encodings.source, None)
            return EncodedImages(self.maker, parts, encodings.ids)
        parts = self._encode_captions(encodings.source, None)
        return EncodedCaptions(self.maker, parts, encodings.ids)

    def _encode_images(
        self, images: RegionFeatures | Pixels, shown: bool | None
    ) -> tuple[ImagePart, ...]:
        with self._progress(len(images), "encoding images", shown) as done:
            return tuple(network.encode_images(images, done) for network in self._networks)

    def _encode_captions(
        self, captions: Sequence[str] | RegionFeatures, shown: bool | None
    ) -> tuple[CaptionPart, ...]:
        if self._encoder and not self.in_words and not isinstance(captions, RegionFeatures):
            captions = encode_texts(self._encoder, captions, self.name)
        tokens = [network.tokens_of(captions) for network in self._networks]
        with self._progress(len(captions), "encoding captions", shown) as done:
            pairs = zip(self._networks, tokens, strict=True)
            return tuple(network.encode_captions(own, done) for network, own in pairs)

    @contextlib.contextmanager
    def _progress(
        self, total: int, description: str, shown: bool | None = None, unit: str = "rows"
    ) -> Iterator[Callable[[int], None]]:
        """Show the progress of all networks; yields a callback for the finished work."""
        if shown is False:
            yield ignore_progress
            return
        with progress_bar(total * len(self._networks), description, unit=unit) as bar:
            yield bar.update

    def open(self, path: str | Path) -> EncodedImages | EncodedCaptions:
        """Open encodings that `save` wrote; their arrays stay in the files, memory-mapped.

        Raises:
          DataError: the directory holds no encodings, or damaged ones.
          ConfigError: another model made them.
        """
        encodings = open_encodings(path)
        self._check(encodings, type(encodings), str(path))
        return encodings

    def save_pretrained(self, directory: str | Path) -> None:
        """Save the model, independently of its run, to a new directory that `load` reads.

        The directory holds the weights in safetensors, the config, the vocabulary or tokenizer, and
        a model card in Markdown. It needs neither the work directory nor the data.

        Args:
          directory: the new directory.

        Raises:
          ConfigError: the directory exists, or this is not the model of a single run.
          DataError: safetensors is not installed (extra `pretrained`).

        Example:
          >>> l2rm_jax.load("runs/mine").save_pretrained("mine")
          >>> l2rm_jax.load("mine")
          Retriever(mine: vse, l2rm, epoch 12 (best), rSum 301.4)
        """
        if self._save is None:
            raise ConfigError(f"save_pretrained: found {self.name}, expected the model of one run")
        self._save(expand_home(directory))

    def _check(self, encodings: Encodings, kind: type[Encodings], name: str) -> None:
        if not isinstance(encodings, kind):
            found = getattr(encodings, "kind", type(encodings).__name__)
            raise ConfigError(f"{name}: found {found}, expected encoded {kind.kind}")
        if encodings.maker.fingerprint != self.maker.fingerprint:
            raise ConfigError(
                f"{name}: found encodings of {encodings.maker.name} "
                f"({encodings.maker.fingerprint}), expected encodings of {self.name} "
                f"({self.maker.fingerprint})"
            )
