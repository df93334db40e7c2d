"""The learned cost is resized for another batch size."""

import itertools

import numpy as np

from l2rm_jax.methods.cost import cost, resize_cost


def test_resizing_keeps_the_part_that_treats_all_captions_alike():
    rng = np.random.default_rng(0)
    learned = {"kernel": rng.normal(size=(5, 5)), "bias": 3.0 + rng.normal(size=5)}
    same = resize_cost(learned, 5)
    assert all(same[name] is learned[name] for name in learned)
    # That part is the mean over all orders of the captions. A batch with every caption twice then
    # has the same costs.
    orders = list(itertools.permutations(range(5)))
    kernel = np.mean([learned["kernel"][np.ix_(order, order)] for order in orders], axis=0)
    expected = {"kernel": kernel, "bias": np.full(5, learned["bias"].mean())}
    sims = rng.uniform(size=(3, 5)).astype(np.float32)
    twice = cost(resize_cost(learned, 10), np.tile(sims, 2))
    np.testing.assert_allclose(twice, np.tile(cost(expected, sims), 2), rtol=1e-5, atol=1e-6)
