"""Masked partial Sinkhorn against solvers that share no code with it."""

import contextlib
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ott.geometry.geometry import Geometry
from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn
from scipy.optimize import linprog

from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.ot.reference import linear_problem
from tests.ot.problems import draw, sinkhorn, weights

SIZE = (8, 6)


def uneven():
    return weights(8, 2, total=1.3), weights(6, 3)


READ = np.random.default_rng(4).uniform(size=SIZE)


def ott_sinkhorn(problem):
    return Sinkhorn(threshold=1e-10, max_iterations=20000)(problem)


def as_ott_needs():
    """OTT brings arrays of different ranks and types together."""
    stack = contextlib.ExitStack()
    stack.enter_context(jax.numpy_rank_promotion("allow"))
    stack.enter_context(jax.numpy_dtype_promotion("standard"))
    return stack


@partial(jax.jit, static_argnums=0)
@partial(jax.value_and_grad, argnums=1, has_aux=True)
def read_ott(xi, cost, mass, epsilon, a, b, mask):
    output = ott_sinkhorn(linear_problem(cost, mass, epsilon=epsilon, a=a, b=b, mask=mask, xi=xi))
    return jnp.sum(output.matrix[:-1, :-1] * READ), (output, output.matrix)


@jax.jit
@partial(jax.value_and_grad, has_aux=True)
def read_ours(cost, mass, epsilon, a, b, mask):
    result = partial_sinkhorn(cost, mass, epsilon=epsilon, a=a, b=b, mask=mask, threshold=1e-11)
    return jnp.sum(result.plan * READ), result


@pytest.mark.slow
def test_ott_on_the_extended_problem():
    xi = 0.5  # moves the potentials and nothing else
    with jax.enable_x64(True):
        cost, mask = draw(*SIZE, seed=1)
        cost, mask = jnp.asarray(cost, float), jnp.asarray(mask)
        a, b = (jnp.asarray(side, float) for side in uneven())
        for epsilon, mass in ((0.03, 0.1), (0.3, 0.6)):
            problem = cost, mass, epsilon, a, b, mask
            with as_ott_needs():
                (_, (expected, matrix)), expected_gradient = read_ott(xi, *problem)
            (_, result), gradient = read_ours(*problem)
            assert expected.converged and result.converged
            np.testing.assert_allclose(result.plan, matrix[:-1, :-1], rtol=0, atol=1e-9)
            f, g = expected.f - xi / 2, expected.g - xi / 2
            np.testing.assert_allclose(result.f, f[:-1] + g[-1], atol=1e-7)
            np.testing.assert_allclose(result.g, g[:-1] + f[-1], atol=1e-7)
            np.testing.assert_allclose(result.price, xi - f[-1] - g[-1], atol=1e-7)
            masses = matrix[matrix > 0]
            entropy = -jnp.sum(masses * jnp.log(masses))
            value = jnp.sum(matrix[:-1, :-1] * cost) - epsilon * entropy
            np.testing.assert_allclose(result.value, value, rtol=1e-8)
            scale = jnp.abs(expected_gradient).max()
            np.testing.assert_allclose(gradient, expected_gradient, atol=1e-4 * scale)


def test_all_mass_is_ordinary_transport():
    cost, _ = draw(*SIZE, seed=5)
    a, b = weights(8, 6), weights(6, 7)
    with as_ott_needs():
        expected = ott_sinkhorn(LinearProblem(Geometry(jnp.asarray(cost), epsilon=0.1), a, b))
    result = partial_sinkhorn(cost, 1.0, epsilon=0.1, a=a, b=b)
    assert result.converged
    np.testing.assert_allclose(result.plan, expected.matrix, atol=2e-7)
    potentials = result.f + result.price + result.g.mean()
    np.testing.assert_allclose(potentials, expected.f + expected.g.mean(), atol=1e-5)


@pytest.mark.parametrize("mass", [0.25, 0.8, 0.9999])
def test_exact_partial_transport_as_epsilon_vanishes(mass):
    cost, mask = draw(*SIZE, seed=1)
    a, b = weights(8, 10), weights(6, 20)
    exact = _linear_programme(cost, mass, a, b, mask)
    result = partial_sinkhorn(
        cost, mass, epsilon=2e-3, a=a, b=b, mask=mask, max_iterations=20000, threshold=1e-6
    )
    # No plan is cheaper than the exact one; plans may differ where costs are nearly equal.
    assert exact - 1e-6 <= result.cost <= exact + 4e-3
    np.testing.assert_allclose(result.mass, mass, rtol=1e-5)


def test_exact_partial_transport_of_pot():
    ot = pytest.importorskip("ot")
    cost, mask = draw(*SIZE, seed=1)
    a, b = weights(8, 10), weights(6, 20)
    plan = ot.partial.partial_wasserstein(
        *(np.asarray(array, float) for array in (a, b, np.where(mask, cost, 1e3))), m=0.8
    )
    exact = _linear_programme(cost, 0.8, a, b, mask)
    np.testing.assert_allclose(np.sum(plan * cost), exact, rtol=1e-6)
    result = partial_sinkhorn(
        cost, 0.8, epsilon=2e-3, a=a, b=b, mask=mask, max_iterations=20000, threshold=1e-6
    )
    assert result.converged
    assert np.abs(result.plan - plan).sum() < 0.05 * 0.8


def _linear_programme(cost, mass, a, b, mask) -> float:
    n, m = cost.shape
    rows, columns = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    solution = linprog(
        cost.ravel(),
        A_ub=np.concatenate([rows, columns]),
        b_ub=np.concatenate([a, b]),
        A_eq=np.ones((1, n * m)),
        b_eq=[mass],
        bounds=[(0, None if allowed else 0) for allowed in mask.ravel()],
        method="highs",
    )
    assert solution.success
    return solution.fun


def test_a_few_iterations_with_a_dustbin():
    """OMIT's matching: global embeddings are one more row and column, and all mass moves."""
    cost, _ = draw(*SIZE, seed=8)
    a, b = np.full(8, 1 / 8), np.full(6, 1 / 6)
    expected, _ = sinkhorn(cost / 0.05, a, b, iterations=3)
    result = partial_sinkhorn(
        cost, 1.0, epsilon=0.05, start=jnp.zeros(6), mode="fixed", max_iterations=3
    )
    assert result.iterations == 3 and not result.converged
    np.testing.assert_allclose(result.plan[1:, 1:], expected[1:, 1:], rtol=1e-4)


KINDS = {
    "random": lambda rng, n: rng.uniform(size=(n, n)),
    "nearly constant": lambda rng, n: 0.9 + 0.01 * rng.standard_normal((n, n)),
    "learned": lambda rng, n: np.maximum(0.8 - 0.4 * rng.standard_normal((n, n)), 1e-10),
    "sparse": lambda rng, n: rng.uniform(size=(n, n)) * (rng.uniform(size=(n, n)) < 0.1),
    "constant": lambda rng, n: np.full((n, n), 0.7),
    "zero": lambda rng, n: np.zeros((n, n)),
}


def _check_float32(kind, n, mass, epsilon):
    """Check errors below 1e-6, in at most twice the iterations of float64 Sinkhorn.

    The solver must converge even if float64 Sinkhorn does not.
    """
    cost = KINDS[kind](np.random.default_rng(n), n).astype(np.float32)
    mask = ~np.eye(n, dtype=bool)
    extended = np.pad(np.where(mask, cost / epsilon, np.inf), ((0, 1), (0, 1)))
    extended[-1, -1] = np.inf
    marginal = np.append(np.full(n, 1 / n), 1 - mass)
    result = partial_sinkhorn(cost, mass, epsilon=epsilon, mask=mask)
    plan = np.asarray(result.plan, np.float64)
    expected, iterations = sinkhorn(extended, marginal, marginal, 2000, threshold=1e-7)
    assert result.converged and result.iterations <= 2 * iterations
    assert abs(plan.sum() - mass) < 1e-6 and result.mass_error < 1e-6
    assert result.marginal_error < 1e-6
    excess = [np.maximum(plan.sum(axis) - 1 / n, 0).sum() for axis in (0, 1)]
    assert max(excess) < 1e-6
    if iterations < 2000:
        assert np.abs(plan - expected[:-1, :-1]).sum() <= 1e-5 * mass


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_accurate(kind):
    for mass, epsilon in ((0.1, 0.07), (0.9, 0.07), (0.1, 0.01), (1.0, 0.3)):
        _check_float32(kind, 24, mass, epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_accurate_for_a_large_batch(kind):
    for mass in (0.05, 0.5, 0.99):
        for epsilon in (0.01, 0.1, 1.0):
            _check_float32(kind, 128, mass, epsilon)


@pytest.mark.slow
def test_learned_costs_of_a_run():
    """Six batches of Flickr8k (SAF, rate 0.4, first epoch after the warm-up) in which columns move
    nearly all of their weight. Sinkhorn in float64 takes from 700 to more than 5000 iterations."""
    costs = np.load(Path(__file__).parent / "flickr8k_costs.npy")
    mask, epsilon, mass, n = ~np.eye(64, dtype=bool), 0.01, 0.1, 64
    result = partial_sinkhorn(costs, mass, epsilon=epsilon, mask=mask)
    assert result.converged.all() and result.iterations.max() <= 120
    assert result.marginal_error.max() <= 1e-6 and result.mass_error.max() <= 1e-6
    # The conditions of the optimum: the plan is the exponential of its potentials, and it has the
    # right marginals and mass.
    f, g, price = (np.asarray(x, np.float64) for x in (result.f, result.g, result.price))
    exponents = f[:, :, None] + g[:, None, :] + price[:, None, None] - costs.astype(np.float64)
    plans = np.where(mask, np.exp(exponents / epsilon), 0.0)
    assert np.abs(plans - result.plan).sum((1, 2)).max() <= 2e-5 * mass
    assert np.abs(plans.sum((1, 2)) - mass).max() <= 1e-5 * mass
    for moved, potential in ((plans.sum(2), f), (plans.sum(1), g)):
        np.testing.assert_allclose(moved + np.exp(potential / epsilon), 1 / n, rtol=2e-5)
