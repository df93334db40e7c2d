"""Tiled scoring on several devices against one forward pass of everything."""

import jax
import numpy as np

from l2rm_jax.data.dataset import PairDataset
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.models.retrieval import RetrievalModel
from l2rm_jax.parallel import AXIS, Replicas
from l2rm_jax.scoring import Scorer

IMAGES, PER_IMAGE, VOCABULARY, LONGEST = 5, 3, 30, 12


def test_every_similarity_is_in_its_place():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, LONGEST + 1, IMAGES * PER_IMAGE)
    tokens = [rng.integers(4, VOCABULARY, length).astype(np.int32) for length in lengths]
    own = np.arange(len(tokens)) // PER_IMAGE
    features = rng.normal(size=(IMAGES, 4, 6)).astype(np.float32)
    images = RegionFeatures.from_array(features, "images")
    captions = [str(line) for line in tokens]
    dataset = PairDataset("test", images, captions, tokens, own, own)

    padded = np.stack([np.pad(line, (0, LONGEST - len(line))) for line in tokens])
    model = RetrievalModel("sgr", VOCABULARY, 8, 6, 6, sgr_steps=1, axis_name=AXIS)
    alone = model.clone(axis_name=None)
    variables = jax.jit(alone.init)(jax.random.key(0), features, padded, lengths)
    expected = jax.jit(alone.apply)(variables, features, padded, lengths)

    # Five images and fifteen captions fill neither the devices nor the tiles.
    replicas = Replicas(jax.devices()[:2])
    found = Scorer(model, replicas, batch_size=4).similarities(
        replicas.replicate(variables), dataset
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.unique(found).size == found.size  # a swap would show
