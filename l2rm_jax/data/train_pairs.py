"""Pairs as training reads them, with known mismatches and a judgement; the splits of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int32, Real

from l2rm_jax.data.drawn_splits import Drawn
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.mismatch import Mismatch
from l2rm_jax.data.pairs import Images, Pairs, Tokens
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.directory import Encoders
from l2rm_jax.pretrained.tokenizer import Pieces


def token_counts(tokens: Tokens) -> Int32[np.ndarray, " captions"]:
    """Number of words of each caption."""
    if isinstance(tokens, RegionFeatures):
        return tokens.counts
    return np.array([len(words) for words in tokens], np.int32)


class Rematched(NamedTuple):
    """Images combined with better fitting captions than the stored ones.

    Attributes:
      image: row of each image.
      caption: row of the caption that it was rematched with.
      weight: confidence in the match, in (0, 1].
    """

    image: Int[np.ndarray, " rematched"]
    caption: Int[np.ndarray, " rematched"]
    weight: Float[np.ndarray, " rematched"]


@dataclass(frozen=True)
class TrainPairs:
    """The pairs of one split of a run. Pair k is caption k and the image that it is stored with.

    Attributes:
      pairs: the pairs as stored, mismatches included. Their captions are tokens: word indices with
        `<start>` and `<end>`, or word vectors. Captions of the same image are adjacent.
      caption_image: [pairs] row of the image that each caption was written for, ascending; equal to
        `stored_image` unless the pair is mismatched.
      known: [pairs] True for pairs that are known to be matched; None if no pairs are known.
      posterior: [pairs] probability that the pair is mismatched; None if the pairs were not judged.
      scores: [pairs] score of each pair from `data.scores`; None without such a file.
      rematched: the rematched suspicious pairs; None if they were not rematched.
      encoded: the same pairs as vectors of pretrained encoders, which judge them and to which
        models are fitted in closed form; None: `pairs` themselves.
      drawn: the splits that the run draws from data with a single split, of which these pairs are
        the training split; None for other data.
    """

    pairs: Pairs
    caption_image: Int[np.ndarray, " pairs"]
    known: Bool[np.ndarray, " pairs"] | None = None
    posterior: Float[np.ndarray, " pairs"] | None = None
    scores: Real[np.ndarray, " pairs"] | None = None
    rematched: Rematched | None = None
    encoded: Pairs | None = None
    drawn: Drawn | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def split(self) -> str:
        """Name of the split."""
        return self.pairs.split

    @property
    def images(self) -> Images:
        """Features, or pictures for a pretrained encoder, each image once."""
        return self.pairs.images

    @property
    def captions(self) -> Sequence[str]:
        """The captions as texts, or placeholders for vectors."""
        return self.pairs.labels

    @property
    def tokens(self) -> Tokens:
        """Word indices of each caption, or its word vectors."""
        return self.pairs.captions

    @property
    def stored_image(self) -> Int[np.ndarray, " pairs"]:
        """Row of the image that each caption is stored with."""
        return self.pairs.image_of

    @property
    def to_judge(self) -> Pairs:
        """The pairs as they are judged: by vectors of pretrained encoders, if there are any."""
        return self.pairs if self.encoded is None else self.encoded

    @property
    def captions_per_image(self) -> int | Int[np.ndarray, " images"]:
        """Number of captions per image; a single number if all images have equally many."""
        counts = np.bincount(self.caption_image, minlength=len(self.images))
        return int(counts[0]) if (counts == counts[0]).all() else counts

    @property
    def lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of words of each caption."""
        return token_counts(self.tokens)

    @property
    def matched(self) -> Bool[np.ndarray, " pairs"]:
        """True for captions that are stored with their own image."""
        return self.stored_image == self.caption_image

    @property
    def paired(self) -> Bool[np.ndarray, " pairs"]:
        """True for pairs that a method may trust: the pairs known to be matched, or all."""
        return np.ones(len(self), bool) if self.known is None else self.known

    def head(self, images: int) -> "TrainPairs":
        """Return the first `images` images with their captions.

        Raises:
          DataError: there are fewer images, or captions are already mismatched.
        """
        if not self.matched.all():
            raise DataError(f"{self.split}: found mismatched pairs; call head() before mismatching")
        first = self.take(np.arange(np.searchsorted(self.caption_image, images)))
        encoded = self.encoded and self.encoded.head(images)
        return replace(first, pairs=self.pairs.head(images), encoded=encoded)

    def take(self, pairs: Int[np.ndarray, " taken"]) -> "TrainPairs":
        """Return some of the pairs. All images are kept, even images without a remaining caption.

        A rematched pair is kept if its image and its caption both have a pair among the taken ones.
        """
        return TrainPairs(
            self.pairs.take(pairs),
            self.caption_image[pairs],
            known=None if self.known is None else self.known[pairs],
            posterior=None if self.posterior is None else self.posterior[pairs],
            scores=None if self.scores is None else self.scores[pairs],
            rematched=None if self.rematched is None else self._take_rematched(pairs),
            encoded=self.encoded and self.encoded.take(pairs),
            drawn=self.drawn and self.drawn.take(pairs),
        )

    def _take_rematched(self, pairs: np.ndarray) -> Rematched:
        """Select the rematched pairs among `pairs`, if all are distinct; renumber captions."""
        image, caption, weight = self.rematched
        new_row = np.full(len(self), -1)
        new_row[pairs] = np.arange(len(pairs))
        kept = (new_row[caption] >= 0) & np.isin(image, self.stored_image[pairs])
        return Rematched(image[kept], new_row[caption[kept]], weight[kept])

    def cross(self, images: Int[np.ndarray, " I"], captions: Int[np.ndarray, " M"]) -> "TrainPairs":
        """Return some images and some captions, without information about their pairs."""
        pairs = self.pairs.cross(images, captions)
        encoded = self.encoded and self.encoded.cross(images, captions)
        return TrainPairs(pairs, pairs.image_of, encoded=encoded)

    def with_mismatch(self, mismatch: Mismatch) -> "TrainPairs":
        """Return the same captions, stored with the images that `mismatch` assigns to them.

        Raises:
          DataError: the mismatch is for another number of captions or images.
        """
        if len(mismatch.stored_image) != len(self) or mismatch.image_count != len(self.images):
            raise DataError(
                f"{self.split}: found a mismatch of {len(mismatch.stored_image)} captions and "
                f"{mismatch.image_count} images, expected {len(self)} and {len(self.images)}"
            )
        stored = mismatch.stored_image
        encoded = self.encoded and replace(self.encoded, image_of=stored)
        pairs = replace(self.pairs, image_of=stored)
        return replace(self, pairs=pairs, known=mismatch.known, encoded=encoded)


@dataclass(frozen=True)
class Data:
    """The three splits of a run, its vocabulary and its mismatch.

    Only the training split is mismatched and then filtered. The vocabulary is empty if captions are
    given as vectors, and a tokenizer if a pretrained text encoder reads them.

    Attributes:
      word_vectors: initial word embeddings; NaN for words without a vector.
      pretrained: the pretrained encoders; None without any.
      start: arrays of the model that the run starts from, by their path; None without one.
    """

    train: TrainPairs
    dev: TrainPairs
    test: TrainPairs
    vocabulary: Vocabulary | Pieces
    mismatch: Mismatch
    word_vectors: Float[np.ndarray, "words W"] | None = None
    pretrained: Encoders | None = None
    start: Mapping[str, np.ndarray] | None = None

    @property
    def splits(self) -> tuple[TrainPairs, TrainPairs, TrainPairs]:
        """Training, validation and test split."""
        return self.train, self.dev, self.test
