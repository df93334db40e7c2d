"""Rematching: captions of swapped images are recovered, whatever the order of the data."""

from types import SimpleNamespace

import numpy as np
import pytest

from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import rematch

IMAGES, EACH = 60, 3


@pytest.fixture(scope="module")
def data():
    """60 images, 30 of them with each other's captions; a posterior that is right for most."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((IMAGES, 8))
    own = np.repeat(np.arange(IMAGES), EACH)
    images = np.concatenate([hidden, rng.standard_normal((IMAGES, 2))], axis=1)
    captions = np.concatenate([hidden[own], rng.standard_normal((len(own), 2))], axis=1)
    captions += 0.1 * rng.standard_normal(captions.shape)
    to = np.arange(IMAGES)
    to[:30] = np.roll(to[:30], 1)
    stored = to[own]
    posterior = np.where(stored == own, 0.1, 0.9)
    posterior[own == 40] = 0.7  # a false alarm
    posterior[own == 5] = 0.2  # a miss
    pairs = Pairs(images.astype(np.float32), captions.astype(np.float32), stored)
    return SimpleNamespace(pairs=pairs, own=own, stored=stored, posterior=posterior)


def test_captions_of_swapped_images_are_found_again(data):
    image, caption, weight = rematch(data.pairs, data.posterior)
    swapped = data.stored[caption] != data.own[caption]
    assert weight[swapped].sum() > 0.8 * weight.sum()
    right = weight[image == data.own[caption]].sum() / weight.sum()
    assert right > 0.6
    best = {c: image[caption == c][weight[caption == c].argmax()] for c in set(caption[swapped])}
    assert np.mean([best[c] == data.own[c] for c in best]) > 0.8


def test_rematched_pairs_are_sorted_and_new(data):
    image, caption, weight = rematch(data.pairs, data.posterior)
    assert list(zip(image, caption, strict=True)) == sorted(zip(image, caption, strict=True))
    assert (image != data.stored[caption]).all()
    assert (weight > 0).all() and (np.bincount(caption, weight) <= 1 + 1e-5).all()
    assert (weight <= data.posterior[caption] + 1e-6).all()


def test_the_order_of_the_data_does_not_matter(data):
    rng = np.random.default_rng(1)
    i, c = rng.permutation(IMAGES), rng.permutation(len(data.own))
    images, captions = data.pairs.images[i], data.pairs.captions[c]
    shuffled = Pairs(images, captions, np.argsort(i)[data.stored[c]])
    image, caption, weight = rematch(shuffled, data.posterior[c])
    found = dict(zip(zip(i[image], c[caption], strict=True), weight, strict=True))
    expected = rematch(data.pairs, data.posterior)
    pairs = zip(expected.image, expected.caption, strict=True)
    assert found == dict(zip(pairs, expected.weight, strict=True))


@pytest.mark.parametrize("suspicious", [0, 1])
def test_too_few_suspicious_pairs_are_not_rematched(data, suspicious):
    posterior = np.full(len(data.own), 0.1)
    posterior[:suspicious] = 0.8
    found = rematch(data.pairs, posterior)
    assert [len(array) for array in found] == [0, 0, 0]


def test_unequal_sets_of_captions(data):
    stored = np.delete(data.stored, 0)  # one image has two captions
    posterior = np.delete(data.posterior, 0)
    pairs = Pairs(data.pairs.images, np.delete(data.pairs.captions, 0, axis=0), stored)
    found = rematch(pairs, posterior)
    own = np.delete(data.own, 0)
    assert found.weight[found.image == own[found.caption]].sum() > 0.6 * found.weight.sum()
