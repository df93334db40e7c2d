"""The mismatches that experiments make, against naive ones."""

from collections import Counter

import numpy as np
import pytest

from experiments.judging import mismatches
from tests.judging.synthetic import make_pairs

NOUNS = "dog", "man", "ball", "snow", "beach", "truck", "kite"


@pytest.fixture(scope="module")
def vectors():
    _, captions, own, _ = make_pairs(150, 5, 0.0)
    return own, captions


@pytest.fixture(scope="module")
def nouns():
    rng = np.random.default_rng(0)
    chance = np.arange(1, 8) / 28
    return [list(rng.choice(NOUNS, rng.integers(0, 4), p=chance)) for _ in range(750)]


def test_hard_mismatch_is_among_the_similar_images(vectors):
    own, captions = vectors
    stored = mismatches.hard_mismatch(0.2, 0, own, captions)
    moved = np.flatnonzero(stored != own)
    assert len(moved) == 150
    unit = captions / np.linalg.norm(captions, axis=1, keepdims=True)
    means = np.array([unit[own == image].mean(axis=0) for image in range(150)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    for caption in moved[:20]:
        likeness = means @ unit[caption]
        likeness[own[caption]] = -np.inf
        rank = 1 + np.sum(likeness > likeness[stored[caption]])
        assert 2 <= rank <= 20


def test_mixed_mismatch_has_both_kinds(vectors):
    own, captions = vectors
    stored = mismatches.mismatched("mixed", 0.4, 0, own, captions, [""] * len(own))
    wrong = (stored != own).reshape(150, 5).sum(axis=1)
    assert 0.3 < (stored != own).mean() < 0.4
    assert (wrong == 5).sum() > 20 and (wrong == 1).sum() > 20


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4])
def test_noun_mismatch_exchanges_captions_that_share_a_noun(vectors, nouns, rate):
    own = vectors[0]
    stored = mismatches.noun_mismatch(rate, 3, own, nouns)
    moved = set(np.flatnonzero(stored != own))
    assert len(moved) == 2 * (int(rate * 750) // 2)
    assert Counter(stored) == Counter(own)
    for image, taken in Counter(stored[list(moved)]).items():
        assert taken == sum(own[caption] == image for caption in moved)
    for caption in moved:  # one of the captions in whose place it may stand shares a noun
        gone = [one for one in moved if own[one] == stored[caption] and stored[one] == own[caption]]
        assert any(set(nouns[caption]) & set(nouns[one]) for one in gone)
    assert (mismatches.noun_mismatch(rate, 3, own, nouns) == stored).all()
    if rate:
        assert (mismatches.noun_mismatch(rate, 4, own, nouns) != stored).any()


def test_noun_mismatch_of_captions_with_nothing_in_common():
    own = np.arange(6)
    words = [["dog"], ["dog"], ["cat"], ["tree"], [], []]
    stored = mismatches.noun_mismatch(0.9, 0, own, words)
    assert stored.tolist() == [1, 0, 2, 3, 4, 5]
    assert (
        mismatches.noun_mismatch(0.9, 0, np.array([0, 0, 1]), [["dog"]] * 2 + [["x"]]) == [0, 0, 1]
    ).all()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # TextBlob's lexicon
def test_common_nouns_of_a_caption():
    pytest.importorskip("textblob")
    found = mismatches.common_nouns("Two dogs run with a Man in the snow towards Paris .")
    assert found == ["dogs", "man", "snow"]
