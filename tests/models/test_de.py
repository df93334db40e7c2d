"""The encoders of DE: the effect of padding, and the word counts of the first level."""

import jax
import numpy as np
import pytest

from l2rm_jax.devices.batch import Batch
from l2rm_jax.models.de import FRAME_WIDTHS, Levels
from tests.grid import VOCABULARY, small_model


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_padding_changes_a_vector_only_as_in_the_code(packed):
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(2, 7, 5)).astype(np.float32)
    levels = Levels(3, FRAME_WIDTHS, 4, 6, 0.0, packed)
    inputs = frames, np.float32(np.arange(7) < np.array([[4], [7]])), frames.mean(1), False
    variables = levels.init(jax.random.key(0), *inputs)
    variables = jax.tree.map(lambda x: x + 0.1, variables)  # biases other than zero
    whole = levels.apply(variables, *inputs)[0]
    alone = levels.apply(
        variables, frames[:1, :4], np.ones((1, 4), np.float32), frames[:1].mean(1), False
    )[0]
    assert np.allclose(whole, alone, atol=1e-6) == packed


@pytest.mark.slow
def test_a_sentence_is_the_same_in_any_batch_and_its_words_are_counted():
    model = small_model("de", VOCABULARY)
    tokens = np.array([[5, 6, 6, 7, 0, 0, 0], [5, 8, 9, 9, 9, 9, 7]])
    batch = Batch(np.ones((2, 3, 4), np.float32), np.full(2, 3), tokens, np.array([4, 7]))
    variables = model.init(jax.random.key(0), batch)
    encode = jax.jit(lambda batch: model.apply(variables, batch, method="embed_captions"))
    whole, alone = encode(batch), encode(Batch(tokens=tokens[:1, :4], lengths=batch.lengths[:1]))
    np.testing.assert_allclose(whole[:1], alone, atol=1e-6)
    # The first level has the last rows of the mapping: change the row of the word 6.
    mapping = variables["params"]["text_encoder"]["levels"]["mapping"]
    row = len(mapping["kernel"]) - VOCABULARY + 6
    mapping["kernel"] = mapping["kernel"].at[row].add(1.0)
    changed = model.apply(variables, batch, method="embed_captions")
    assert not np.allclose(changed[0], whole[0], atol=1e-3)
    np.testing.assert_allclose(changed[1], whole[1], atol=1e-6)
