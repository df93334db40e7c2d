"""Detectors: the built-in ones, and registration of others."""

from dataclasses import replace

import numpy as np
import pytest

from l2rm_jax.auroc import auroc
from l2rm_jax.config import default
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.judging import (
    DETECTORS,
    Model,
    Scorer,
    judge_pairs,
    make_detector,
    product_similarity,
    register_detector,
)

IMAGES = 150


@pytest.fixture(scope="module")
def pairs():
    """Make vectors of one embedding space, with a fifth of the captions moved."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((IMAGES, 24)).astype(np.float32)
    captions = images + rng.standard_normal(images.shape).astype(np.float32)
    stored = np.arange(IMAGES)
    moved = rng.permutation(IMAGES)[: IMAGES // 5]
    stored[moved] = np.roll(stored[moved], 1)
    return Pairs(images, captions, stored), stored != np.arange(IMAGES)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cosines(pairs):
    return np.sum(unit(pairs.images[pairs.image_of]) * unit(pairs.captions), axis=1)


def config_with(**fields):
    config = default()
    config.judgement.update(fields)
    return config


def judge(pairs, config):
    return judge_pairs(pairs, make_detector(config), name=config.judgement.detector)


def test_cosines_are_what_they_are(pairs):
    pairs, wrong = pairs
    judged = judge(pairs, config_with(detector="cosine"))
    np.testing.assert_allclose(judged.similarity, cosines(pairs), atol=1e-5)
    assert judged.made[:2] == ("cosine", "cosine") and auroc(judged.posterior, wrong) > 0.95


def test_scores_of_the_encoder_are_taken_and_others_refused(pairs, tmp_path):
    pairs, wrong = pairs
    np.save(tmp_path / "clip.npy", 100 * cosines(pairs) + 3)
    config = config_with(detector="scores", scores=str(tmp_path / "clip.npy"))
    assert auroc(judge(pairs, config).posterior, wrong) > 0.95
    np.save(tmp_path / "clip.npy", np.random.default_rng(1).random(IMAGES))
    with pytest.raises(DataError, match=r"clip\.npy"):
        judge(pairs, config)
    np.save(tmp_path / "clip.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"found float64 \[3\]"):
        judge(pairs, config)
    with pytest.raises(ConfigError, match=r"judgement\.scores: empty"):
        make_detector(config_with(detector="scores"))


def test_vectors_of_two_spaces_have_no_cosine(pairs):
    pairs = replace(pairs[0], captions=pairs[0].captions[:, :20])
    with pytest.raises(DataError, match=r"24 .*20"):
        judge(pairs, config_with(detector="cosine"))


def test_a_detector_of_ones_own(pairs):
    """A registered detector scores each fold, and its scores are judged."""
    pairs, wrong = pairs
    asked = []

    def make(config):
        def detect(task):
            def model_of(fold):
                asked.append(fold)
                here = task.drawn[fold]
                images, captions = np.sort(here.images), np.sort(here.pairs)
                own = unit(pairs.images[images]), unit(pairs.captions[captions])
                return Model(product_similarity(images, own[0], captions, own[1]), 0.2)

            return Scorer("mine", model_of)

        return detect

    register_detector("mine", make)
    try:
        judged = judge(pairs, config_with(detector="mine"))
        with pytest.raises(ConfigError, match="mine"):
            register_detector("mine", make)
    finally:
        del DETECTORS["mine"]
    assert sorted(asked) == [0, 1, 2, 3, 4] and judged.made.detector == "mine"
    np.testing.assert_allclose(judged.similarity, cosines(pairs), atol=1e-5)
    assert auroc(judged.posterior, wrong) > 0.95
    with pytest.raises(ConfigError, match=r"judgement\.detector: found 'yours'"):
        make_detector(config_with(detector="yours"))
