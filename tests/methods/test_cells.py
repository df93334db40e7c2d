"""Every method with every head: initialised and stepped, in shapes alone."""

import jax
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.data.batches import Batch
from l2rm_jax.methods import METHODS, make_method
from l2rm_jax.models import make_model
from l2rm_jax.models.retrieval import HEADS

SIZE = 10
BATCH = Batch(
    images=np.zeros((SIZE, 4, 5), np.float32),
    regions=np.full(SIZE, 4, np.int32),
    tokens=np.zeros((SIZE, 7), np.int32),
    lengths=np.full(SIZE, 7, np.int32),
    pair_index=np.arange(SIZE, dtype=np.int32),
    image_index=np.arange(SIZE, dtype=np.int32),
)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", METHODS)
def test_a_step_keeps_the_state_s_shapes(name, head):
    config = defaults.default()
    config.method, config.model.head, config.train.batch_size = name, head, SIZE
    config.model.update(embed_dim=8, word_dim=6, sim_dim=6, region_mask=0.2, word_noise=0.2)
    method = make_method(make_model(config.model, vocabulary_size=20), config)
    state = jax.eval_shape(lambda: method.init(jax.random.key(0), BATCH))
    for stream in method.losses:
        after, metrics = jax.eval_shape(method.step, state, {stream: BATCH})
        jax.tree.map(lambda x, y: np.testing.assert_equal(x.shape, y.shape), after, state)
        assert metrics["loss"].shape == ()
