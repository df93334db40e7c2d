import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.data import mismatch
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.errors import ConfigError, DataError

IMAGES, CAPTIONS = 200, 1000
OWN = np.arange(CAPTIONS) // 5


@pytest.mark.parametrize("rate", [0.2, 0.6, 0.8])
def test_image_protocol_moves_whole_images(rate):
    made = mismatch.generate("image", rate, 3, OWN, IMAGES)
    by_image = made.stored_image.reshape(IMAGES, 5)
    assert (by_image == by_image[:, :1]).all()
    assert sorted(by_image[:, 0]) == list(range(IMAGES))
    moved = (by_image[:, 0] != np.arange(IMAGES)).sum()
    assert rate * IMAGES - 6 <= moved <= rate * IMAGES  # a permutation leaves about one in place
    assert made.true_rate == pytest.approx(moved / IMAGES)
    assert made.kept_share == pytest.approx(1 - moved / IMAGES)


@pytest.mark.parametrize(("rate", "kept"), [(0.2, 0.9998), (0.6, 0.923), (0.8, 0.67)])
def test_caption_protocol_leaves_most_images_a_right_caption(rate, kept):
    own = np.arange(25000) // 5
    made = mismatch.generate("caption", rate, 3, own, 5000)
    assert sorted(made.stored_image) == sorted(own)
    assert made.true_rate == pytest.approx(rate, abs=0.002)
    assert made.kept_share == pytest.approx(kept, abs=0.015)  # as in published index files
    right = made.stored_image.reshape(-1, 5) == own.reshape(-1, 5)
    assert made.kept_share == pytest.approx(right.any(1).mean())


def test_semi_paired_leaves_so_many_images_and_says_which():
    made = mismatch.generate("semi_paired", 0.4, 3, OWN, IMAGES, paired_images=30)
    by_image = made.stored_image.reshape(IMAGES, 5)
    assert (by_image == by_image[:, :1]).all()
    assert sorted(by_image[:, 0]) == list(range(IMAGES))
    paired = made.known.reshape(IMAGES, -1)[:, 0]
    assert paired.sum() == 30 and (by_image[paired, 0] == np.flatnonzero(paired)).all()
    assert (by_image[~paired, 0] == np.flatnonzero(~paired)).sum() < 6
    assert (made.known == np.repeat(paired, 5)).all()
    assert made.row()["rate_asked"] == pytest.approx(170 / 200)
    again = mismatch.generate("semi_paired", 0.0, 3, OWN, IMAGES, paired_images=30)
    np.testing.assert_array_equal(again.stored_image, made.stored_image)
    other = mismatch.generate("semi_paired", 0.4, 4, OWN, IMAGES, paired_images=30)
    assert not np.array_equal(other.known, made.known)
    assert mismatch.generate("image", 0.4, 3, OWN, IMAGES).known is None


def test_a_file_says_which_pairs_are_known_to_be_matched(tmp_path):
    path = tmp_path / "known.npy"
    np.save(path, [7, 2])
    made = mismatch.read_known(path, OWN, IMAGES)
    assert np.flatnonzero(made.known).tolist() == [2, 7]
    np.testing.assert_array_equal(made.stored_image, OWN)
    [text] = made.sentences()
    assert "2 of" in text and "1,000" in text and str(path) in text
    np.save(path, [7, 1000, -1])
    with pytest.raises(DataError) as error:
        mismatch.read_known(path, OWN, IMAGES)
    starts = (f"{path}: entry 1: found 1000", f"{path}: entry 2: found -1")
    assert all(map(str.startswith, error.value.args, starts)) and len(error.value.args) == 2


def test_methods_trust_the_known_pairs_alone(tmp_path):
    config = defaults.get_config()
    config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 12, 4, 4
    np.save(tmp_path / "known.npy", [7, 2])
    config.mismatch.rate = 0.0
    config.mismatch.paired_file = str(tmp_path / "known.npy")
    with pytest.raises(ConfigError, match="paired_file"):
        load_data(config.data, config.mismatch, workdir=None)
    config.mismatch.protocol = "semi_paired"
    train = load_data(config.data, config.mismatch, workdir=None).train
    assert np.flatnonzero(train.paired).tolist() == [2, 7] and train.matched.all()
    assert train.take(np.array([0, 2, 5])).paired.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("protocol", "paired", "message"),
    [
        ("image", 5, "paired_images: found 5"),
        ("semi_paired", 0, "paired_images: found 0"),
        ("semi_paired", 201, "paired_images: found 201"),
    ],
)
def test_paired_images_that_do_not_fit(protocol, paired, message):
    with pytest.raises(ConfigError, match=message):
        mismatch.generate(protocol, 0.0, 0, OWN, IMAGES, paired)


@pytest.mark.parametrize("protocol", ["image", "caption"])
def test_seed_decides_and_rate_zero_is_identity(protocol):
    def stored(rate, seed):
        return mismatch.generate(protocol, rate, seed, OWN, IMAGES).stored_image

    assert np.array_equal(stored(0.4, 1), stored(0.4, 1))
    assert not np.array_equal(stored(0.4, 1), stored(0.4, 2))
    assert np.array_equal(stored(0.0, 1), OWN)
    assert stored(0.4, 1).dtype == np.int64


def test_row_says_what_results_need():
    asked = {"protocol": "image", "mismatch_source": "generated"}
    row = mismatch.generate("image", 0.0, 1, OWN, IMAGES).row()
    assert row == {**asked, "rate_asked": 0.0}  # nothing is known about the user's pairs
    made = mismatch.generate("image", 0.5, 1, OWN, IMAGES)
    known = {"true_rate": made.true_rate, "kept_share": made.kept_share}
    assert made.row() == {**asked, "rate_asked": 0.5, **known} and 0 < made.true_rate < 1


UNEVEN = np.sort(np.concatenate([np.arange(IMAGES), np.arange(CAPTIONS - IMAGES) % 9]))


@pytest.mark.parametrize("own", [OWN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("protocol", ["image", "caption"])
def test_an_index_is_read_as_it_was_made(tmp_path, protocol, own):
    made = mismatch.generate(protocol, 0.5, 0, own, IMAGES)
    path = tmp_path / "index.npy"
    np.save(path, made.stored_image.astype(np.int32))
    back = mismatch.read(path, own, IMAGES)
    assert np.array_equal(back.stored_image, made.stored_image)
    assert (back.protocol, back.source, back.rate_asked) == (protocol, str(path), None)
    assert (back.true_rate, back.kept_share) == (made.true_rate, made.kept_share)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (np.arange(IMAGES).astype(float), "found float64 .*expected one axis of integers"),
        (np.arange(IMAGES)[None], r"found int64 \[1, 200\]"),
        (np.arange(IMAGES) - 1, "entry 0: found -1"),
        (np.zeros(0, int), "no data"),
    ],
)
def test_unusable_index_is_refused(tmp_path, index, message):
    path = tmp_path / "index.npy"
    np.save(path, index)
    with pytest.raises(DataError, match=message) as error:
        mismatch.read(path, OWN, IMAGES)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("protocol", "rate", "seed", "message"),
    [
        ("images", 0.2, 0, "protocol: found 'images'.*image.*caption"),
        ("caption", -0.1, 0, "rate: found -0.1"),
        ("caption", float("nan"), 0, "rate: found nan"),
        ("caption", 0.1, -1, "seed: found -1"),
    ],
)
def test_unusable_setting_is_refused(protocol, rate, seed, message):
    with pytest.raises(ConfigError, match=message):
        mismatch.generate(protocol, rate, seed, OWN, IMAGES)


@pytest.fixture
def pairs() -> TrainPairs:
    """Matched pairs of 12 images with 5 captions each."""
    array = np.random.default_rng(0).normal(size=(12, 4, 6)).astype(np.float32)
    own = np.arange(60) // 5
    captions = [f"caption number {k}" for k in range(60)]
    tokens = [np.array([1, 3, 2], np.int32)] * 60
    images = RegionFeatures.from_array(array, "mine")
    return TrainPairs(Pairs(images, tokens, own, captions), own)


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
