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
    mapped = jax.vmap(solve)(costs, masks, masses, epsilons) if mode == "converged" else together
    for i in range(3):
        alone = solve(costs[i], masks[i], masses[i], epsilons[i])
        for several in (together, mapped):
            assert several.iterations[i] == alone.iterations  # frozen where it stopped
            np.testing.assert_allclose(several.plan[i], alone.plan, atol=1e-6)
            np.testing.assert_allclose(several.value[i], alone.value, rtol=1e-5)


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
    costs, _ = problems(5, 8, 6)

    def score(costs):
        result = partial_sinkhorn(costs, 0.5, epsilon=0.1)
        return jnp.sum(result.plan**2), result

    gradient = jax.grad(score, has_aux=True)
    expected = jax.jit(gradient)(costs)
    monkeypatch.setattr(batch, "_CLOSE", 2 * 8 * 6)
    jax.clear_caches()  # of the functions compiled for the other size
    found = jax.jit(lambda costs: gradient(costs))(costs)
    np.testing.assert_array_equal(found[1].iterations, expected[1].iterations)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
    np.testing.assert_allclose(found[1].plan, expected[1].plan, atol=1e-7)


def test_four_devices_equal_one():
    costs, _ = problems(4, 8, 6)
    together = partial_sinkhorn(costs, 0.3, epsilon=0.1)
    spread = jax.pmap(lambda cost: partial_sinkhorn(cost, 0.3, epsilon=0.1))(costs)
    np.testing.assert_array_equal(spread.iterations, together.iterations)
    np.testing.assert_allclose(spread.plan, together.plan, atol=1e-7)
