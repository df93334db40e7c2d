"""The training pairs as judging takes them: vectors of images and captions, and texts."""

from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.data.captions import caption_files
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.data.text import Vocabulary, tokenize
from l2rm_jax.data.vectors import caption_vectors, image_vectors
from l2rm_jax.judging import Pairs
from l2rm_jax.linear.word_features import WordRows, word_rows


def judged_pairs(data: ConfigDict, train: PairDataset) -> Pairs:
    """Return vectors of the pairs; where these are not made of words, words are a second space.

    Args:
      data: the `data` part of the config, which says whether captions are there as texts.
      train: the pairs.

    Raises:
      DataError: a feature is not finite; of single vectors only when they are read.
    """
    texts = judged_texts(data, train)
    made_of_words = _in_words(train) and train.judged_captions is None
    return Pairs(
        images=image_vectors(train).rows,
        captions=caption_vectors(train).rows,
        pair_image=train.stored_image,
        text_rows=None if made_of_words or texts is None else rows_of_texts(texts),
        texts=texts,
    )


def judged_texts(data: ConfigDict, train: PairDataset) -> list[str] | None:
    """Return the captions as texts; None where only vectors are there."""
    has_files = not data.path or bool(caption_files(Path(data.path), train.split))
    return train.captions if has_files or _in_words(train) else None


def _in_words(train: PairDataset) -> bool:
    return not isinstance(train.tokens, RegionFeatures)


def rows_of_texts(texts: Sequence[str]) -> WordRows:
    """Return weighted counts of the words of texts."""
    words = [tokenize(text) for text in texts]
    vocabulary = Vocabulary.from_words(words)
    return word_rows([vocabulary.encode_words(line) for line in words])[1]
