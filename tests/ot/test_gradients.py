"""Gradients of plan, cost and value: finite differences in float64, and edge cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.ot import partial_sinkhorn
from tests.ot.problems import draw, weights

SIZE = (5, 6)  # rows are the shorter side here, columns in the tests against ott-jax
STOP = {"converged": {"threshold": 1e-13}, "fixed": {"max_iterations": 7}}
READ = np.random.default_rng(13).uniform(size=SIZE)


def solve(arguments, mask, mode, **stop):
    cost, a, b, mass, epsilon = arguments
    return partial_sinkhorn(cost, mass, epsilon=epsilon, a=a, b=b, mask=mask, mode=mode, **stop)


def plan_score(arguments, mask, mode):
    result = solve(arguments, mask, mode, **STOP[mode])
    return jnp.sum(result.plan * READ) + result.cost


def value_score(arguments, mask, mode):
    return solve(arguments, mask, mode, **STOP[mode]).value


def finite_difference(both, arguments, steps):
    def score_at(size):
        return both(tuple(x + size * d for x, d in zip(arguments, steps, strict=True)))[0]

    return (score_at(1e-5) - score_at(-1e-5)) / 2e-5


# The gradient of the value holds at the optimum, so mode "fixed" is left out.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "mode"),
    [(plan_score, "converged"), (plan_score, "fixed"), (value_score, "converged")],
)
def test_finite_differences(score, mode):
    with jax.enable_x64(True):
        cost, mask = draw(*SIZE, seed=11)
        mask[1, 4:] = False
        a, b = weights(5, 12), weights(6, 13, total=1.4)
        rng = np.random.default_rng(14)
        both = jax.jit(jax.value_and_grad(lambda arguments: score(arguments, mask, mode)))
        for mass in (0.3, 0.9, 1.0):
            arguments = [jnp.asarray(array, float) for array in (cost, a, b, mass, 0.2)]
            _, gradients = both(tuple(arguments))
            assert not gradients[0][~mask].any()
            for index, (argument, gradient) in enumerate(zip(arguments, gradients, strict=True)):
                if mass == 1.0 and index in (1, 3):
                    continue  # all of `a` moves: neither `a` nor the mass can change alone
                step = [jnp.zeros_like(x) for x in arguments]
                step[index] = jnp.asarray(rng.uniform(0.2, 1.0, argument.shape))
                expected = finite_difference(both, arguments, step)
                np.testing.assert_allclose(
                    jnp.sum(gradient * step[index]), expected, rtol=2e-6, atol=1e-8
                )
        if score is plan_score:  # almost no mass has the slope of a little mass
            none, little = ((*arguments[:3], jnp.asarray(mass), 0.2) for mass in (1e-9, 1e-5))
            np.testing.assert_allclose(both(none)[1][3], both(little)[0] / 1e-5, rtol=1e-3)


def nothing_allowed(mask):
    mask[:] = False


def rows_and_columns_forbidden(mask):
    mask[2], mask[:, 1] = False, False


def one_row_left(mask):
    mask[1:] = False


EDGES = {
    "no mass": {"mass": 0.0},
    "hardly any mass": {"mass": 1e-9},
    "all mass": {"mass": 1.0},
    "too much mass": {"mass": 1.5},
    "no cost": {"cost": 0.0},
    "equal costs": {"cost": 5.0},
    "small epsilon": {"epsilon": 0.01},
    "weight of zero": {"a": 3},
    "no weight": {"a": slice(None)},
    "nothing allowed": {"mask": nothing_allowed},
    "rows and columns forbidden": {"mask": rows_and_columns_forbidden},
    "infeasible": {"mask": one_row_left},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["converged", "fixed", "l2rm"])
def test_everything_is_finite_at_the_edges(mode):
    count = {"max_iterations": 30}

    @jax.jit
    @jax.value_and_grad
    def score(arguments, mask):
        result = solve(arguments, mask, mode, **count)
        total = jnp.sum(result.plan * READ) + result.cost + result.value
        # Include the other fields, so that a NaN in any of them shows.
        return total + sum(jnp.sum(x) for x in (result.f, result.g, result.price, result.mass))

    for name, change in EDGES.items():
        cost, mask = draw(*SIZE)
        a, b = weights(5, 1), weights(6, 2)
        cost = cost if "cost" not in change else np.full_like(cost, change["cost"])
        a[change.get("a", [])] = 0.0
        change.get("mask", lambda mask: None)(mask)
        cost[~mask] = np.inf  # masked costs are never read
        mass, epsilon = change.get("mass", 0.4), change.get("epsilon", 0.1)
        arguments = tuple(jnp.asarray(x, jnp.float32) for x in (cost, a, b, mass, epsilon))
        value, gradients = score(arguments, mask)
        for array in (value, *gradients):
            assert jnp.isfinite(array).all(), name
        assert not gradients[0][~mask].any(), name


def test_l2rm_plan_is_a_constant():
    cost = jnp.asarray(draw(*SIZE)[0])
    gradient = jax.grad(lambda c: partial_sinkhorn(c, 0.2, epsilon=0.1, mode="l2rm").plan[0].sum())(
        cost
    )
    assert not gradient.any()


@pytest.mark.slow
def test_gradients_of_a_batch_are_those_of_its_problems():
    costs = jnp.stack([jnp.asarray(draw(*SIZE, seed=seed)[0], jnp.float32) for seed in (21, 22)])
    masses = jnp.array([0.2, 0.7])

    def score(cost, mass):
        result = partial_sinkhorn(cost, mass, epsilon=0.2)
        return jnp.sum(result.plan * READ) + result.value

    one = jax.grad(score, argnums=(0, 1))
    batched = jax.vmap(one)(costs, masses)
    for k in range(2):
        for gradients, expected in zip(batched, one(costs[k], masses[k]), strict=True):
            np.testing.assert_allclose(gradients[k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_constant_in_all_costs_changes_no_gradient():
    """A constant does not affect the plan, and must not cost its derivative any digits."""
    cost = np.random.default_rng(0).integers(0, 1024, size=(24, 20)).astype(np.float32) / 1024

    def gradients(cost):
        def solve(cost, epsilon):
            return partial_sinkhorn(cost, 0.1, epsilon=epsilon)

        cost_gradient = jax.grad(lambda *numbers: solve(*numbers).cost)(cost, 0.05)
        value_gradients = jax.grad(lambda *numbers: solve(*numbers).value, (0, 1))(cost, 0.05)
        return cost_gradient, *value_gradients

    for near, far in zip(gradients(cost), gradients(cost + 64), strict=True):
        np.testing.assert_allclose(near, far, rtol=0, atol=2e-4 * np.abs(near).max())
