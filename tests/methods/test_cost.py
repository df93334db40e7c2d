"""The learned cost at another batch size than it was trained for."""

import itertools

import numpy as np

from l2rm_jax.methods.cost import cost, resize_cost


def test_a_learned_cost_for_another_batch_size():
    rng = np.random.default_rng(0)
    learned = {"kernel": rng.normal(size=(5, 5)), "bias": 3.0 + rng.normal(size=5)}
    same = resize_cost(learned, 5)
    assert all(same[name] is learned[name] for name in learned)
    # Only the part that does not depend on the order of the captions is kept: the mean over all
    # orders. A batch with every caption twice then has the same costs.
    orders = list(itertools.permutations(range(5)))
    kernel = np.mean([learned["kernel"][np.ix_(order, order)] for order in orders], axis=0)
    expected = {"kernel": kernel, "bias": np.full(5, learned["bias"].mean())}
    sims = rng.uniform(size=(3, 5)).astype(np.float32)
    twice = cost(resize_cost(learned, 10), np.tile(sims, 2))
    np.testing.assert_allclose(twice, np.tile(cost(expected, sims), 2), rtol=1e-5, atol=1e-6)
