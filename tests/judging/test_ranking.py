"""The posterior ranks pairs about as well as the information that it is made of, or better."""

import numpy as np
import pytest

from l2rm_jax.auroc import auroc
from l2rm_jax.data import mismatch
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
