"""The posterior ranks pairs about as well as the information that it is made of, or better."""

import numpy as np
import pytest

from l2rm_jax.auroc import auroc
from l2rm_jax.data import mismatch, scenes
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import judge_pairs
from tests.judging.synthetic import make_pairs

IMAGES, EACH = 1000, 5


def judged(protocol, rate):
    """Judge pairs some of whose captions were moved; return the judgement and which."""
    images, captions, own, _ = make_pairs(IMAGES, EACH, 0.0, noise=1.0)
    protocols = ("image", "caption") if protocol == "both" else (protocol,)
    stored = own
    for seed, each in enumerate(protocols):
        moved = mismatch.generate(each, rate / len(protocols), seed, own, IMAGES).stored_image
        stored = np.where(moved != own, moved, stored)
    return judge_pairs(Pairs(images, captions, stored)), stored != own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "rate", "below"),
    [
        ("caption", 0.8, 0.012),
        ("caption", 0.9, 0.03),
        ("both", 0.4, 0.005),
        ("image", 0.2, 0.0),
        ("image", 0.8, 0.0),
    ],
)
def test_the_posterior_ranks_as_well_as_the_information(protocol, rate, below):
    found, wrong = judged(protocol, rate)
    information = auroc(-found.information, wrong)
    assert 0.85 < information < 0.995
    assert auroc(found.posterior, wrong) > information - below
    assert found.rate.estimate == pytest.approx(wrong.mean(), abs=0.06)


@pytest.mark.slow
def test_counts_of_colours_and_words_take_a_weak_ridge():
    """With the ridge of dense vectors, the AUROC is 0.64."""
    images, captions, own = colours_and_words(300)
    stored = mismatch.generate("caption", 0.2, 0, own, len(images)).stored_image
    found = judge_pairs(Pairs(images, captions, stored))
    assert auroc(-found.information, stored != own) > 0.89


def colours_and_words(count):
    """Count colours of pictures of `scenes` and words of three captions each."""
    data = scenes.generate(count, seed=2, split="train")
    levels = [scenes.draw(scene, pixels=64).reshape(-1, 3) // 32 for scene in data.scenes]
    colours = [np.bincount(x.astype(int) @ (64, 8, 1), minlength=512) for x in levels]
    chosen = [5 * n + k for n in range(count) for k in range(3)]
    texts = [data.captions[row].lower().split() for row in chosen]
    known = sorted({word for text in texts for word in text})
    words = np.array([[text.count(word) for word in known] for text in texts])
    images = np.sqrt(np.array(colours, np.float32))
    return images, words.astype(np.float32), np.repeat(np.arange(count), 3)
