"""Captions given as vectors: their encoder, and training with every head."""

import jax
import numpy as np
import pytest

from l2rm_jax.devices.batch import Batch
from l2rm_jax.losses.ranking import triplet_mean
from l2rm_jax.models.encoders import VectorTextEncoder
from tests.grid import small_model

SIZE = 4


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_each_vector_is_a_word():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(SIZE, 3, 7)).astype(np.float32)
    lengths = np.array([3, 1, 2, 3])
    encoder = VectorTextEncoder(embed_dim=5, dropout=0.0)
    variables = jax.jit(encoder.init, static_argnums=3)(jax.random.key(0), vectors, lengths, False)
    code = encoder.apply(variables, vectors, lengths, False)
    layer = variables["params"]["words"]["projection"]
    expected = unit(vectors @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    mask = np.arange(3) < lengths[:, None]
    np.testing.assert_array_equal(code.mask, mask)
    np.testing.assert_allclose(code.words, expected * mask[..., None], atol=1e-6)
    # The global vector of a caption of one word is that word.
    np.testing.assert_allclose(code.overall[1], expected[1, 0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["vse", "sgr", "imram", "omit"])
def test_heads_train_with_one_vector_per_image_and_caption(head):
    """Similarities and gradients are finite, and both encoders get a gradient."""
    rng = np.random.default_rng(1)
    images, captions = (rng.normal(size=(SIZE, 1, n)).astype(np.float32) for n in (6, 7))
    ones = np.ones(SIZE, np.int32)
    batch = Batch(images, ones, captions, ones)
    model = small_model(head, 0, sgr_steps=2)

    @jax.jit
    def learn(key):
        variables = model.init(key, batch)

        def loss(params):
            sims, _ = model.apply(
                {**variables, "params": params},
                batch,
                train=True,
                method="global_similarity",
                mutable=["batch_stats"],
            )
            return triplet_mean(sims, margin=0.2), sims

        return jax.grad(loss, has_aux=True)(variables["params"])

    grads, sims = learn(jax.random.key(0))
    assert np.isfinite(sims).all() and np.std(sims) > 1e-5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    for encoder in ("image_encoder", "text_encoder"):
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(grads[encoder])) > 1e-6
