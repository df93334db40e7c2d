"""A small data set and checks, shared by the tests of batches and of streams."""

from dataclasses import replace

import jax
import numpy as np

from l2rm_jax.data import mismatch
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.batch import Batch

IMAGES, PAIRS = 40, 200


class CountedRows:
    """Features that remember which rows were read."""

    def __init__(self, array: np.ndarray):
        self.array, self.read = array, []

    shape = property(lambda self: self.array.shape)

    def __len__(self) -> int:
        return len(self.array)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        self.read += list(indices)
        return self.array[indices]

    def region_counts(self, indices: np.ndarray) -> np.ndarray:
        return np.full(len(indices), self.array.shape[1], np.int32)


def make_dataset(longest: int = 20) -> TrainPairs:
    """Mismatched pairs with captions of 3 to `longest` words, and images of 1 to 3 regions."""
    rng = np.random.default_rng(1)
    own = np.arange(PAIRS) // 5
    tokens = [rng.integers(1, 99, rng.integers(3, longest + 1)).astype(np.int32) for _ in own]
    array = rng.normal(size=(IMAGES, 3, 4)).astype(np.float32)
    images = RegionFeatures.from_array(array, "mine", np.arange(IMAGES) % 3 + 1)
    captions = [f"caption {k}" for k in own]
    clean = TrainPairs(Pairs(images, tokens, own, captions), own)
    return clean.with_mismatch(mismatch.generate("caption", 0.5, 0, own, IMAGES))


def with_nan(dataset: TrainPairs, row: int) -> TrainPairs:
    """The same pairs, with a NaN in the features of an image."""
    array = dataset.images.array.copy()
    array[row, 0, 0] = np.nan
    images = RegionFeatures.from_array(array, "mine")
    return replace(dataset, pairs=replace(dataset.pairs, images=images))


def check_batch(dataset: TrainPairs, batch: Batch, max_words: int = 64) -> None:
    """Check that each row of a batch holds the image and the caption of its pair."""
    assert batch.images.dtype == np.float32
    assert {batch.tokens.dtype, batch.lengths.dtype} == {np.dtype(np.int32)}
    assert {batch.pair_index.dtype, batch.image_index.dtype} == {np.dtype(np.int32)}
    np.testing.assert_array_equal(batch.image_index, dataset.stored_image[batch.pair_index])
    np.testing.assert_array_equal(batch.images, dataset.images.rows(batch.image_index))
    np.testing.assert_array_equal(batch.regions, batch.image_index % 3 + 1)
    for tokens, length, pair in zip(batch.tokens, batch.lengths, batch.pair_index, strict=True):
        np.testing.assert_array_equal(tokens[:length], dataset.tokens[pair][:max_words])
        assert not tokens[length:].any()


def joined(parts) -> list:
    """Concatenate the shares that several hosts have read of the same batches."""
    steps = zip(*parts, strict=True)
    return [jax.tree.map(lambda *rows: np.concatenate(rows), *each) for each in steps]
