"""A trained network, which encodes images and captions and scores them."""

import contextlib
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.pairs import Tokens
from l2rm_jax.data.text import UNKNOWN, Vocabulary, load_sentence_splitter, tokenize
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import advise_on_memory
from l2rm_jax.devices.parallel import Replicas, matmul_precision
from l2rm_jax.errors import DataError
from l2rm_jax.evaluation.codes import CodedCaptions, CodeScorer
from l2rm_jax.evaluation.scoring import paired_similarities, vector_similarities
from l2rm_jax.models import RetrievalModel
from l2rm_jax.models.encoders import ImageCode
from l2rm_jax.pretrained.tokenizer import Pieces
from l2rm_jax.retriever.sources import WITH_ENCODER, row_numbers

# One row per image or caption: vectors, or the codes that a head without vectors compares.
ImagePart = Float[np.ndarray, "I D"] | ImageCode
CaptionPart = Float[np.ndarray, "J D"] | list[CodedCaptions]

_log = logging.getLogger(__name__)
_NAMED = 5  # words or captions that a message names


class Network:
    """One trained network, with its vocabulary or tokenizer.

    Args:
      name: the run or file that it comes from.
      title: short description: head, method, epoch.
      model: the model.
      variables: its collections "params" and "batch_stats".
      vocabulary: the words that it knows, or a pretrained tokenizer; None if it takes captions as
        vectors.
      split_sentences: as the field `data.split_sentences` of its run.
      precision: as the field `precision` of its run.
      batch_size: captions encoded at once.
    """

    def __init__(
        self,
        name: str,
        title: str,
        model: RetrievalModel,
        variables: Any,
        vocabulary: Vocabulary | Pieces | None,
        *,
        split_sentences: bool,
        precision: str,
        batch_size: int,
    ):
        self.name, self.title, self.vocabulary = name, title, vocabulary
        self.head, self.metric = model.config.model.head, model.metric
        replicas = Replicas(jax.local_devices())
        self._model, self._host_variables = model.clone(axis_name=None), variables
        self._variables = replicas.replicate(variables)
        self._scorer = CodeScorer(model, replicas, batch_size)
        image_base = model.bases.image if model.bases else None
        # Preprocessing of pictures; None if it takes features.
        self.preparation = None if image_base is None else image_base.preparation
        self._precision = precision
        self._splitter = load_sentence_splitter() if split_sentences and vocabulary else None

    @cached_property
    def fingerprint(self) -> str:
        """Hash parameters and vocabulary; only equal networks can compare their encodings."""
        digest = hashlib.blake2b(digest_size=8)
        for path, leaf in jax.tree_util.tree_leaves_with_path(self._host_variables):
            digest.update(jax.tree_util.keystr(path).encode())
            digest.update(np.ascontiguousarray(leaf).tobytes())
        if isinstance(self.vocabulary, Pieces):
            digest.update(self.vocabulary.to_bytes())
        else:
            words = self.vocabulary.word2idx if self.vocabulary else {}
            digest.update("\n".join(words).encode())
        return digest.hexdigest()

    def encode_images(
        self, images: RegionFeatures | Pixels, done: Callable[[int], None]
    ) -> ImagePart:
        """Encode images.

        Args:
          images: their features, or their pixels.
          done: called with the number of images that were encoded.

        Raises:
          DataError: the features do not have the shape that the network was trained on, or are not
            finite.
        """
        if isinstance(images, Pixels) or self.preparation is not None:
            self._check_pictures(images)
        else:
            self._check_shape("encode_images", images, ("regions", "features"))
        encode = self._scorer.image_vectors if self.metric else self._scorer.image_codes
        with self._context("encoding images"):
            return encode(self._variables, images, done)

    def encode_captions(self, tokens: Tokens, done: Callable[[int], None]) -> CaptionPart:
        """Encode captions, as `tokens_of` returns them; arguments and errors as above."""
        if isinstance(tokens, RegionFeatures):
            self._check_shape("encode_captions", tokens, ("words", "features"))
        encode = self._scorer.caption_vectors if self.metric else self._scorer.caption_codes
        with self._context("encoding captions"):
            return encode(self._variables, tokens, done)

    def similarity(
        self, images: ImagePart, captions: CaptionPart, done: Callable[[int], None]
    ) -> Float[np.ndarray, "I J"]:
        """Similarity of every image with every caption, as evaluation computes it."""
        if self.metric:
            return vector_similarities(images, captions, self.metric)
        with self._context("scoring"):
            return self._scorer.code_similarities(self._variables, images, captions, done)

    def pair_similarities(
        self, images: ImagePart, captions: CaptionPart, rows: Int[np.ndarray, "P 2"]
    ) -> Float[np.ndarray, " P"]:
        """Similarities of selected pairs of rows, image and caption."""
        if self.metric:
            return paired_similarities(images[rows[:, 0]], captions[rows[:, 1]], self.metric)
        with self._context("scoring"):
            return self._scorer.code_pair_similarities(self._variables, images, captions, rows)

    @property
    def has_alignment(self) -> bool:
        """Whether the head has an alignment of words and regions."""
        return self._model.has_alignment

    def alignment(
        self, image: ImageCode, caption: list[CodedCaptions], text: str | None
    ) -> tuple[Sequence[str], Float[np.ndarray, "R L"]]:
        """Return the words of a caption, and the weight of each region with each word.

        Args:
          image: one encoded image.
          caption: one encoded caption.
          text: the caption; None if it was given as vectors, whose words are numbered.
        """
        [(_, code)] = caption
        with self._context("matching words with regions"):
            weights = np.asarray(self._align(self._host_variables, image, code))[0]
        length = int(code.mask.sum())
        weights = weights[: int(image.mask.sum()), :length]
        if text is None or self.vocabulary is None:
            return row_numbers(length), weights
        if isinstance(self.vocabulary, Pieces):
            words, columns = self.vocabulary.words(text)
            return words, np.stack([weights[:, own].sum(axis=1) for own in columns], axis=1)
        return tokenize(text, self._splitter), weights[:, 1:-1]  # without <start> and <end>

    @cached_property
    def _align(self) -> Callable:
        return jax.jit(partial(self._model.apply, method="alignment"))

    def tokens_of(self, captions: Sequence[str] | RegionFeatures) -> Tokens:
        """Convert captions to the network's input: word indices, or vectors.

        A warning names captions without any known word.

        Raises:
          DataError: captions are text and the network takes vectors, or the other way round; or a
            caption is empty.
        """
        if isinstance(captions, RegionFeatures):
            if self.vocabulary is not None:
                raise DataError(f"captions: found vectors, expected text, for {self.name}")
            return captions
        if self.vocabulary is None:
            raise DataError(
                "captions: found text, expected vectors, made by the encoder of its training "
                f"captions, for {self.name}",
                hint=WITH_ENCODER,
            )
        if isinstance(self.vocabulary, Pieces):
            counts = self.vocabulary.counts(captions)
            _refuse_empty(captions, counts.read)
            _report_lost(captions, counts.unknown == counts.read)
            return self.vocabulary.encode_all(captions)
        words = [tokenize(caption, self._splitter) for caption in captions]
        _refuse_empty(captions, np.array([len(found) for found in words]))
        _report_unknown(captions, words, self.vocabulary)
        return [self.vocabulary.encode_words(caption) for caption in words]

    @contextlib.contextmanager
    def _context(self, work: str) -> Iterator[None]:
        with matmul_precision(self._precision), advise_on_memory(work, []):
            yield

    def _check_pictures(self, images: RegionFeatures | Pixels) -> None:
        """Check that these are pictures of the size that the network takes."""
        side = self.preparation and self.preparation.image_size
        if not isinstance(images, Pixels) or images.shape[1] != side:
            is_pixels = isinstance(images, Pixels)
            found = (
                "pictures of {} x {} pixels".format(*images.shape[1:]) if is_pixels else "features"
            )
            expected = f"pictures of {side} x {side} pixels" if side else "features"
            raise DataError(
                f"{images.name}: found {found}, expected {expected}, as in the training of "
                f"{self.name}"
            )

    def _check_shape(self, method: str, features: RegionFeatures, units: tuple[str, str]) -> None:
        """Check that the network accepts sets of this size and width."""
        shape = features.shape[1:]
        if self._accepts(method, shape):
            return
        # The training shape is not recorded, but the parameters have these sizes.
        leaves = jax.tree.leaves(self._host_variables)
        sizes = sorted({size for leaf in leaves for size in np.shape(leaf)})
        candidates = itertools.chain(
            ((shape[0], width) for width in sizes),
            ((count, shape[1]) for count in sizes),
            itertools.product(sizes, sizes),
        )
        fitting = next(filter(partial(self._accepts, method), candidates), None)
        expected = "another shape" if fitting is None else _shape_text(fitting, units)
        raise DataError(
            f"{features.name}: found {_shape_text(shape, units)}, expected {expected}, as in the "
            f"training of {self.name}"
        )

    def _accepts(self, method: str, shape: tuple[int, int]) -> bool:
        rows = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
        counts = jax.ShapeDtypeStruct((1,), jnp.int32)
        batch = Batch(images=rows, regions=counts, tokens=rows, lengths=counts)
        try:
            jax.eval_shape(partial(self._model.apply, method=method), self._host_variables, batch)
        except (flax.errors.FlaxError, TypeError, ValueError):  # of whichever layer meets it first
            return False
        return True


def _shape_text(shape: tuple[int, int], units: tuple[str, str]) -> str:
    return f"{shape[0]} {units[0]} x {shape[1]} {units[1]}"


def _refuse_empty(captions: Sequence[str], counts: Int[np.ndarray, " captions"]) -> None:
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise DataError(
            f"captions: found {captions[empty[0]]!r} as number {empty[0]}, expected at least one "
            "word"
        )


def _report_unknown(
    captions: Sequence[str], words: Iterable[Sequence[str]], vocabulary: Vocabulary
) -> None:
    """Warn about captions without any known word, and count the unknown words of the others."""
    known = vocabulary.word2idx.keys() - {UNKNOWN}
    unknown: dict[str, None] = {}
    is_lost, total, count = [], 0, 0
    for found in words:
        missing = [word for word in found if word not in known]
        unknown |= dict.fromkeys(missing)
        total, count = total + len(found), count + len(missing)
        is_lost.append(len(missing) == len(found))
    if not _report_lost(captions, is_lost) and count:
        _log.info("%d of %d words are unknown: %s", count, total, _some(list(unknown)))


def _report_lost(captions: Sequence[str], is_lost: Sequence[bool]) -> bool:
    """Warn about captions without any known word; return whether there are any."""
    lost = [caption for caption, gone in zip(captions, is_lost, strict=True) if gone]
    if lost:
        _log.warning(
            "%d of %d captions have no word that the model knows: %s",
            len(lost),
            len(captions),
            _some(lost),
        )
    return bool(lost)


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(map(repr, texts[:_NAMED])) + more
