"""The optimiser of models: schedules, warm-up, groups, and Adam's own numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from l2rm_jax.methods.optimiser import Optimiser, model_optimiser
from tests.grid import tiny_config

PARAMS = {
    "text_base": {"kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3) / 6},
    "head": {"kernel": np.array([0.3, -1.2], np.float32)},
}


def gradients(step):
    rng = np.random.default_rng(step)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), PARAMS)


def after(optimiser, steps):
    params, state, update = PARAMS, optimiser.init(PARAMS), jax.jit(optimiser.update)
    for step in range(steps):
        params, state = update(gradients(step), state, params, jnp.int32(0))
    return params


def moved(params):
    return params["text_base"]["kernel"] - PARAMS["text_base"]["kernel"]


def close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), found, expected)


def test_it_is_adamw_of_optax_with_its_numbers():
    reference = optax.chain(
        optax.clip_by_global_norm(0.7), optax.adamw(1e-2, weight_decay=0.2, b2=0.98, eps=1e-6)
    )
    params, state, update = PARAMS, reference.init(PARAMS), jax.jit(reference.update)
    for step in range(4):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = update(gradients(step), state, params)
        params = optax.apply_updates(params, updates)
    settings = {"grad_clip": 0.7, "weight_decay": 0.2}
    close(after(Optimiser(1e-2, 1, beta2=0.98, epsilon=1e-6, **settings), 4), params)
    other = after(Optimiser(1e-2, 1, **settings), 4)
    assert not np.allclose(other["head"]["kernel"], params["head"]["kernel"])


def test_a_warm_up_rises_linearly_from_the_first_update():
    """Each update of a constant gradient has the length of its rate."""
    optimiser = Optimiser(1e-2, 1, warmup_steps=4)
    params, state, moves = PARAMS, optimiser.init(PARAMS), []
    ones = jax.tree.map(np.ones_like, PARAMS)
    for _ in range(6):
        new, state = optimiser.update(ones, state, params, jnp.int32(0))
        moves.append(float(params["head"]["kernel"][0] - new["head"]["kernel"][0]))
        params = new
    np.testing.assert_allclose(moves, 1e-2 * np.minimum(np.arange(1, 7) / 4, 1), rtol=1e-4)


def test_cosine_falls_by_epoch_after_the_warm_up():
    cosine = Optimiser(2.0, 3, starts=(2,), cosine_epochs=5)
    rates = [float(cosine.rate(jnp.int32(epoch))) for epoch in range(9)]
    falling = [1 + np.cos(np.pi * e / 5) for e in range(6)]
    np.testing.assert_allclose(rates, [2, 2, *falling, 0], atol=1e-6)
    steps = Optimiser(2.0, 3, starts=(2,))
    rates = [float(steps.rate(jnp.int32(epoch))) for epoch in (0, 4, 5, 8)]
    np.testing.assert_allclose(rates, [2, 2, 0.2, 0.02], rtol=1e-6)


@pytest.mark.parametrize(
    ("starts", "rates"),
    [((2,), [2.0] * 5 + [0.2] * 3 + [0.02]), ((0, 5), [2.0] * 3 + [0.2] * 2 + [2.0] * 3 + [0.2])],
)
def test_rate_is_decayed_after_each_start(starts, rates):
    rate = Optimiser(learning_rate=2.0, decay_epochs=3, starts=starts).rate
    np.testing.assert_allclose([rate(jnp.int32(epoch)) for epoch in range(9)], rates, rtol=1e-6)


def test_groups_have_their_own_rates_and_may_wait():
    """A group moves by its rate; not in its first epochs, in which its moments run all the same."""
    plain, slow = (after(Optimiser(1e-2, 9, groups=g), 1) for g in ({}, {"text_base": 0.1}))
    np.testing.assert_allclose(moved(slow), 0.1 * moved(plain), rtol=1e-3, atol=1e-7)
    close(slow["head"], plain["head"])
    waiting = Optimiser(1e-2, 9, weight_decay=0.1, groups={"text_base": 0.1}, frozen_epochs=2)
    state, params = waiting.init(PARAMS), PARAMS
    for epoch in (0, 1):
        params, state = waiting.update(gradients(epoch), state, params, jnp.int32(epoch))
        np.testing.assert_array_equal(moved(params), 0)
    assert (params["head"]["kernel"] != PARAMS["head"]["kernel"]).all()
    assert np.all(optax.tree.get(state, "mu")["text_base"]["kernel"])
    params, state = waiting.update(gradients(2), state, params, jnp.int32(2))
    assert (moved(params) != 0).any()


def test_fields_of_the_config():
    config = tiny_config("infonce", "vse")
    fields = {"schedule": "cosine", "warmup_steps": 7, "beta2": 0.9, "base_epochs": 1}
    config.optim.update({**fields, "adam_epsilon": 1e-5, "text_rate": 0.3})
    config.train.epochs = 6
    made = model_optimiser(config)
    assert (made.cosine_epochs, made.warmup_steps, made.beta2, made.epsilon) == (6, 7, 0.9, 1e-5)
    assert made.groups == {} and made.frozen_epochs == 1
    config.model.text_encoder, config.optim.schedule = "bert", "step"
    assert model_optimiser(config).groups == {"text_base": 0.3}
    config.model.image_encoder = "clip"
    assert model_optimiser(config).groups == {"text_base": 0.3, "image_base": 0.01}
    assert model_optimiser(config).cosine_epochs == 0
    assert model_optimiser(config, (0, 4)).starts == (0, 4)
