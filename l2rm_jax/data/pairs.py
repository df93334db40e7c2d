"""The image-caption pairs of a split, and the three splits of a run."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.mismatch import Mismatch
from l2rm_jax.data.pieces import Pieces
from l2rm_jax.data.pixels import Pixels
from l2rm_jax.data.pretrained import Encoders
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import DataError

SUSPICIOUS = 0.5  # a pair with a higher probability of being mismatched counts as mismatched

Tokens = list[Int32[np.ndarray, " words"]] | RegionFeatures  # word indices, or word vectors


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
class PairDataset:
    """The pairs of one split. Pair k is caption k and the image that it is stored with.

    Attributes:
      split: name of the split.
      images: features, or pictures for a pretrained encoder, each image once.
      captions: [pairs] raw text, captions of the same image next to each other. If only the vectors
        of a caption exist, the text names its row in the file.
      tokens: [pairs] word indices of each caption, including `<start>` and `<end>`, or its word
        vectors.
      caption_image: [pairs] row of the image that each caption was written for, ascending.
      stored_image: [pairs] row of the image that each caption is stored with; equal to
        `caption_image` unless the pair is mismatched.
      known: [pairs] True for pairs that are known to be matched; None if no pairs are known.
      posterior: [pairs] probability that the pair is mismatched; None if the pairs were not judged.
      rematched: the rematched suspicious pairs; None if they were not rematched.
      judged_captions: one vector per caption, used to judge pairs and to fit models in closed form;
        None uses the tokens.
      judged_images: likewise one vector per image; None uses the features.
    """

    split: str
    images: RegionFeatures | Pixels
    captions: list[str]
    tokens: Tokens
    caption_image: Int[np.ndarray, " pairs"]
    stored_image: Int[np.ndarray, " pairs"]
    known: Bool[np.ndarray, " pairs"] | None = None
    posterior: Float[np.ndarray, " pairs"] | None = None
    rematched: Rematched | None = None
    judged_captions: RegionFeatures | None = None
    judged_images: RegionFeatures | None = None

    def __len__(self) -> int:
        return len(self.captions)

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

    def head(self, images: int) -> "PairDataset":
        """Return the first `images` images with their captions.

        Raises:
          DataError: there are fewer images, or captions are already mismatched.
        """
        if not self.matched.all():
            raise DataError(f"{self.split}: found mismatched pairs; call head() before mismatching")
        pairs = np.arange(np.searchsorted(self.caption_image, images))
        judged = self.judged_images
        return replace(
            self.take(pairs),
            images=self.images.head(images),
            judged_images=None if judged is None else judged.head(images),
        )

    def take(self, pairs: Int[np.ndarray, " taken"]) -> "PairDataset":
        """Return some of the pairs. All images are kept, even images without a remaining caption.

        A rematched pair is kept if its image and its caption both have a pair among the taken ones.
        """
        vectors, judged = isinstance(self.tokens, RegionFeatures), self.judged_captions
        return replace(
            self,
            captions=[self.captions[pair] for pair in pairs],
            tokens=self.tokens.take(pairs) if vectors else [self.tokens[pair] for pair in pairs],
            caption_image=self.caption_image[pairs],
            stored_image=self.stored_image[pairs],
            known=None if self.known is None else self.known[pairs],
            posterior=None if self.posterior is None else self.posterior[pairs],
            rematched=None if self.rematched is None else self._take_rematched(pairs),
            judged_captions=None if judged is None else judged.take(pairs),
        )

    def _take_rematched(self, pairs: np.ndarray) -> Rematched:
        """Select the rematched pairs among `pairs`, if all are distinct; renumber captions."""
        image, caption, weight = self.rematched
        new_row = np.full(len(self), -1)
        new_row[pairs] = np.arange(len(pairs))
        kept = (new_row[caption] >= 0) & np.isin(image, self.stored_image[pairs])
        return Rematched(image[kept], new_row[caption[kept]], weight[kept])

    def cross(
        self, images: Int[np.ndarray, " I"], captions: Int[np.ndarray, " M"]
    ) -> "PairDataset":
        """Return some images and some captions, without information about their pairs."""
        nothing, judged = np.zeros(len(captions), np.int64), self.judged_images
        return replace(
            self.take(captions),
            images=self.images.take(images),
            judged_images=None if judged is None else judged.take(images),
            caption_image=nothing,
            stored_image=nothing,
            known=None,
        )

    def with_mismatch(self, mismatch: Mismatch) -> "PairDataset":
        """Return the same captions, stored with the images that `mismatch` assigns to them.

        Raises:
          DataError: the mismatch is for another number of captions or images.
        """
        if len(mismatch.stored_image) != len(self) or mismatch.image_count != len(self.images):
            raise DataError(
                f"{self.split}: found a mismatch of {len(mismatch.stored_image)} captions and "
                f"{mismatch.image_count} images, expected {len(self)} and {len(self.images)}"
            )
        return replace(self, stored_image=mismatch.stored_image, known=mismatch.known)


@dataclass(frozen=True)
class Data:
    """The three splits of a run, its vocabulary and its mismatch.

    Only the training split is mismatched and then filtered. The vocabulary is empty if captions are
    given as vectors, and a tokenizer if a pretrained text encoder reads them.

    Attributes:
      word_vectors: initial word embeddings; NaN for words without a vector.
      pretrained: the pretrained encoders; None without any.
    """

    train: PairDataset
    dev: PairDataset
    test: PairDataset
    vocabulary: Vocabulary | Pieces
    mismatch: Mismatch
    word_vectors: Float[np.ndarray, "words W"] | None = None
    pretrained: Encoders | None = None

    @property
    def splits(self) -> tuple[PairDataset, PairDataset, PairDataset]:
        """Training, validation and test split."""
        return self.train, self.dev, self.test
