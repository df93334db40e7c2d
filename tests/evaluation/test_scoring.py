"""Tiled scoring on several devices against one forward pass of everything."""

import jax
import numpy as np
import pytest

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.scoring import CPU_IMAGE_TILE, Scorer
from tests.grid import small_model

IMAGES, PER_IMAGE, VOCABULARY, LONGEST = 5, 3, 30, 12


def make_captions(rng: np.random.Generator, vocabulary: int):
    """Captions of different lengths: as a data set stores them, and as one padded array."""
    lengths = rng.integers(3, LONGEST + 1, IMAGES * PER_IMAGE)
    if vocabulary:
        tokens = [rng.integers(4, vocabulary, length).astype(np.int32) for length in lengths]
        padded = np.stack([np.pad(line, (0, LONGEST - len(line))) for line in tokens])
        return tokens, padded, lengths
    padded = rng.normal(size=(len(lengths), LONGEST, 7)).astype(np.float32)
    return RegionFeatures.from_array(padded, "captions", lengths), padded, lengths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "vocabulary", "tile"),
    [("sgr", VOCABULARY, CPU_IMAGE_TILE), ("vse", 0, 1)],
)
def test_every_similarity_is_in_its_place(head, vocabulary, tile, monkeypatch):
    monkeypatch.setattr("l2rm_jax.evaluation.scoring.CPU_IMAGE_TILE", tile)
    rng = np.random.default_rng(0)
    tokens, padded, lengths = make_captions(rng, vocabulary)
    own = np.arange(len(tokens)) // PER_IMAGE
    features = rng.normal(size=(IMAGES, 4, 6)).astype(np.float32)
    images = RegionFeatures.from_array(features, "images")
    dataset = TrainPairs(Pairs(images, tokens, own, [str(k) for k in own], split="test"), own)

    model = small_model(head, vocabulary, AXIS, sgr_steps=1)
    alone = model.clone(axis_name=None)
    regions = np.full(IMAGES, 4, np.int32)
    batch = Batch(features, regions, padded, lengths)
    variables = jax.jit(alone.init)(jax.random.key(0), batch)
    expected = jax.jit(alone.apply)(variables, batch)

    # 5 images and 15 captions leave padding on the devices and in the tiles.
    replicas = Replicas(jax.devices()[:2])
    scorer, variables = Scorer(model, replicas, batch_size=4), replicas.replicate(variables)
    sims = scorer.similarities(variables, dataset)
    np.testing.assert_allclose(sims, expected, rtol=0, atol=1e-6)
    assert np.unique(sims).size == sims.size  # so a swap would show

    pairs = np.divmod(rng.permutation(expected.size)[:40], expected.shape[1])
    pair_sims = scorer.pair_similarities(variables, dataset, *pairs)
    np.testing.assert_allclose(pair_sims, expected[pairs], rtol=0, atol=1e-6)
    if head == "sgr":
        with pytest.raises(ConfigError, match=r"model\.head: found sgr"):
            scorer.embeddings(variables, dataset)


def test_a_head_that_compares_by_distance_has_no_products():
    scorer = Scorer(small_model("pem", VOCABULARY, AXIS), Replicas(jax.devices()[:1]), batch_size=4)
    with pytest.raises(ConfigError, match=r"model\.head: found pem"):
        scorer.embeddings(None, None)
