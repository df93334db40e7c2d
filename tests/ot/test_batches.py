"""Many problems at once equal as many alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.ot import batch, partial_sinkhorn
from tests.ot.problems import draw


def problems(count, n, m):
    drawn = [draw(n, m, seed=seed) for seed in range(count)]
    return (jnp.stack([jnp.asarray(problem[i]) for problem in drawn]) for i in (0, 1))


@pytest.mark.parametrize("mode", ["converged", "fixed", "l2rm"])
def test_batch_equals_a_loop(mode):
    costs, masks = problems(3, 8, 6)
    masses, epsilons = jnp.asarray([0.1, 0.5, 0.9]), jnp.asarray([0.02, 0.1, 1.0])

    def solve(cost, mask, mass, epsilon):
        return partial_sinkhorn(cost, mass, epsilon=epsilon, mask=mask, mode=mode)

    together = solve(costs, masks, masses, epsilons)
    for i in range(3):
        alone = solve(costs[i], masks[i], masses[i], epsilons[i])
        assert together.iterations[i] == alone.iterations  # frozen where it stopped
        np.testing.assert_allclose(together.plan[i], alone.plan, atol=1e-6)
        np.testing.assert_allclose(together.value[i], alone.value, rtol=1e-5)


def test_leading_axes_broadcast():
    costs, _ = problems(2, 8, 6)
    masses = jnp.asarray([[0.2], [0.4], [0.6]])
    result = partial_sinkhorn(costs, masses, epsilon=0.1)
    assert result.plan.shape == (3, 2, 8, 6) and result.f.shape == (3, 2, 8)
    np.testing.assert_allclose(result.mass, jnp.broadcast_to(masses, (3, 2)), rtol=1e-6)
    alone = partial_sinkhorn(costs[1], 0.4, epsilon=0.1)
    np.testing.assert_allclose(result.plan[1, 1], alone.plan, atol=1e-7)


def test_one_after_another_equals_together(monkeypatch):
    """What a CPU does with a batch of large problems, here of small ones."""
    costs, _ = problems(5, 7, 6)  # a shape that no other test has compiled
    monkeypatch.setattr(batch, "_CLOSE", 2 * 7 * 6)
    found = partial_sinkhorn(costs, 0.5, epsilon=0.1)
    for i, cost in enumerate(costs):
        alone = partial_sinkhorn(cost, 0.5, epsilon=0.1)
        assert found.iterations[i] == alone.iterations
        np.testing.assert_allclose(found.plan[i], alone.plan, atol=1e-7)


@pytest.mark.slow
def test_gradient_of_one_after_another(monkeypatch):
    costs, _ = problems(5, 6, 7)
    monkeypatch.setattr(batch, "_CLOSE", 2 * 7 * 6)

    def score(cost):
        return jnp.sum(partial_sinkhorn(cost, 0.5, epsilon=0.1).plan ** 2)

    found = jax.grad(score)(costs)
    for i, cost in enumerate(costs):
        np.testing.assert_allclose(found[i], jax.grad(score)(cost), atol=1e-6)


def test_four_devices_equal_one():
    costs, _ = problems(4, 8, 6)
    together = partial_sinkhorn(costs, 0.3, epsilon=0.1)
    spread = jax.pmap(lambda cost: partial_sinkhorn(cost, 0.3, epsilon=0.1))(costs)
    np.testing.assert_array_equal(spread.iterations, together.iterations)
    np.testing.assert_allclose(spread.plan, together.plan, atol=1e-7)
