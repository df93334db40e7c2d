import numpy as np
import pytest

from l2rm_jax.data import mismatch
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.errors import DataError


@pytest.fixture
def pairs() -> PairDataset:
    """Matched pairs of 12 images with 5 captions each."""
    array = np.random.default_rng(0).normal(size=(12, 4, 6)).astype(np.float32)
    own = np.arange(60) // 5
    captions = [f"caption number {k}" for k in range(60)]
    tokens = [np.array([1, 3, 2], np.int32)] * 60
    images = RegionFeatures.from_array(array, "mine")
    return PairDataset("train", images, captions, tokens, own, own)


def test_a_mismatch_moves_captions_to_other_images(pairs):
    first = pairs.head(8)
    made = mismatch.generate("caption", 0.9, 0, first.caption_image, 8)
    noisy = first.with_mismatch(made)
    assert np.array_equal(noisy.stored_image, made.stored_image)
    assert noisy.matched.mean() == pytest.approx(1 - made.true_rate)
    assert first.matched.all()
    with pytest.raises(DataError, match="before mismatching"):
        noisy.head(2)
    with pytest.raises(DataError, match=r"40 captions .*8 images"):
        first.head(2).with_mismatch(made)
