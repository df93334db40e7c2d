"""Read a data set through and say what it holds: `--mode=check`."""

from typing import Any

import numpy as np

from l2rm_jax.data.batches import image_batches
from l2rm_jax.data.dataset import PairDataset, load_data
from l2rm_jax.data.text import UNKNOWN, Vocabulary


def check(data_config: Any, mismatch_config: Any) -> str:
    """What the data set holds, after reading every feature and every caption.

    Nothing is written and no device is touched.

    Raises:
      DataError, ConfigError: as `load_data`; a feature that is not finite, with file and row.
    """
    data = load_data(data_config, mismatch_config, workdir=None)
    lines = [f"vocabulary: {len(data.vocabulary)} words"]
    for split in (data.train, data.dev, data.test):
        lines += _describe(split, data.vocabulary, data_config.max_words)
    row = data.mismatch.row()
    lines.append("mismatch: " + ", ".join(f"{name} {value}" for name, value in row.items()))
    return "\n".join(lines)


def _describe(split: PairDataset, vocabulary: Vocabulary, max_words: int) -> list[str]:
    images, regions, features = split.images.shape
    total, squares, count = 0.0, 0.0, 0
    for batch, real, valid in image_batches(split, 256):  # raises at a feature that is not finite
        total += float(batch[:valid].sum(dtype=np.float64))
        squares += float((batch[:valid].astype(np.float64) ** 2).sum())
        count += int(real[:valid].sum()) * features  # zeros stand after them
    mean = total / count
    lengths = np.array([len(tokens) for tokens in split.tokens])
    words = np.concatenate(split.tokens)
    unknown = vocabulary.word2idx[UNKNOWN]
    return [
        f"{split.split}: {images} images of {regions} regions x {features} features "
        f"(mean {mean:.3g}, deviation {(squares / count - mean**2) ** 0.5:.3g}), "
        f"{len(split)} captions, {split.captions_per_image} an image",
        f"  caption tokens: {lengths.min()} to {lengths.max()}, median {np.median(lengths):g}; "
        f"{np.sum(lengths > max_words)} longer than {max_words} are clipped in training; "
        f"{np.mean(words == unknown):.2%} outside the vocabulary",
    ]
