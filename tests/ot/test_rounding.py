"""Rounded plans are feasible, and as good as the linear program's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench.exact import exact_cost
from l2rm_jax.ot import partial_sinkhorn
from tests.ot.problems import draw, weights

# Epsilon in units of the optimal cost of a unit of mass; eight items need a smaller one.
FEW_PAIRS_SHARE, SHARE = 5e-4, 2e-3


def annealed(cost, mass, epsilon, **problem):
    """Solve at a small epsilon, starting from the potentials of larger ones."""
    start, problem["round"] = jnp.zeros_like(problem["b"]), True
    for factor in (256, 64, 16, 4):
        larger = {"epsilon": factor * epsilon, "threshold": 1e-3, "max_iterations": 300}
        start = partial_sinkhorn(cost, mass, start=start, **larger, **problem).g
    stop = {"threshold": 5e-7, "max_iterations": 2000}
    return partial_sinkhorn(cost, mass, epsilon=epsilon, start=start, **stop, **problem)


def draw_batch(n, count, seed):
    """Problems of size `n` whose mass can be moved, and their exact costs."""
    rng, problems = np.random.default_rng(seed), []
    while len(problems) < count:
        seed = int(rng.integers(2**31))
        cost, mask = draw(n, n, seed, forbidden=rng.uniform(0, 0.7))
        a, b, mass = weights(n, seed + 1), weights(n, seed + 2), np.float32(rng.uniform(0.1, 0.9))
        exact = exact_cost(cost, mass, a, b, mask)
        if exact is not None:
            problems.append((cost, mass, a, b, mask, np.float32(exact)))
    return (np.stack(field) for field in zip(*problems, strict=True))


@pytest.mark.parametrize(("n", "count"), [(8, 15), pytest.param(32, 8, marks=pytest.mark.slow)])
def test_rounded_plans_are_feasible_and_optimal(n, count):
    cost, mass, a, b, mask, exact = draw_batch(n, count, n)
    share = np.float32(FEW_PAIRS_SHARE if n == 8 else SHARE)
    result = annealed(cost, mass, share * exact / mass, a=a, b=b, mask=mask)
    plan = np.asarray(result.plan, np.float64)
    assert plan.min() >= 0 and not plan[~mask].any()
    assert (plan.sum(2) - a).max() <= 1e-7
    assert (plan.sum(1) - b).max() <= 1e-7
    np.testing.assert_allclose(plan.sum((1, 2)), mass, rtol=1e-7)
    assert np.max(result.marginal_error) <= 1e-7
    gap = (plan * cost).sum((1, 2)) / exact - 1
    assert gap.min() > -1e-6
    assert np.abs(gap[result.converged]).max() < 1e-4
    assert np.mean(result.converged) > 0.5  # six of ten with 256 items


@pytest.mark.parametrize("mode", ["converged", "fixed", "l2rm"])
def test_any_plan_is_rounded(mode):
    """Also after a single iteration, and where more than the mass moved."""
    cost, mask = draw(8, 6)
    a, b = weights(8, 1), weights(6, 2)
    result = partial_sinkhorn(
        cost, 0.7, epsilon=0.05, a=a, b=b, mask=mask, mode=mode, max_iterations=1, round=True
    )
    plan = np.asarray(result.plan, np.float64)
    assert (plan.sum(1) - a).max() <= 1e-7 and (plan.sum(0) - b).max() <= 1e-7
    np.testing.assert_allclose(plan.sum(), 0.7, rtol=1e-7)
    np.testing.assert_allclose(result.cost, (plan * cost).sum(), rtol=1e-6)
    assert result.mass_error <= 2e-7 and result.marginal_error <= 2e-7


def test_mass_reaches_room_that_only_other_rows_can_use():
    """Row 0 may use column 0 alone, which is full; row 1 must give way to column 1."""
    mask = np.array([[True, False], [True, True]])
    cost = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    result = partial_sinkhorn(
        cost, 0.999, epsilon=0.1, mask=mask, max_iterations=1, mode="fixed", round=True
    )
    np.testing.assert_allclose(result.plan.sum(), 0.999, rtol=2e-7)


def test_an_impossible_mass_is_reported():
    mask = np.zeros((3, 3), bool)
    mask[:, 0] = True
    mask[0] = True
    result = partial_sinkhorn(np.ones((3, 3), np.float32), 0.9, epsilon=0.1, mask=mask, round=True)
    assert not result.converged
    np.testing.assert_allclose(result.mass, 2 / 3, rtol=1e-3)
    np.testing.assert_allclose(result.mass_error, 1 - 2 / 3 / 0.9, rtol=1e-2)


@pytest.mark.slow
def test_gradients_are_those_of_the_plan_before_rounding():
    cost, mask = draw(8, 6)

    def transported(cost, round):
        return partial_sinkhorn(cost, 0.5, epsilon=0.05, mask=mask, round=round).cost

    rounded, plain = (jax.grad(transported)(jnp.asarray(cost), round) for round in (True, False))
    np.testing.assert_allclose(rounded, plain, atol=2e-6)
