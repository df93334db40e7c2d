"""Masked partial Sinkhorn: independent solvers, and the properties of a plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ott.geometry import geometry
from ott.solvers import linear

from l2rm_jax.ot import partial_sinkhorn


def draw(n, m, seed=0, forbidden=0.2):
    """A random cost and mask; every row and column keeps an allowed entry."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(0, 1, (n, m)).astype(np.float32)
    mask = rng.uniform(size=(n, m)) >= forbidden
    mask[np.arange(n), rng.integers(m, size=n)] = True
    mask[rng.integers(n, size=m), np.arange(m)] = True
    return cost, mask


def weights(size, seed, total=1.0):
    drawn = np.random.default_rng(seed).uniform(0.5, 1.5, size)
    return (total * drawn / drawn.sum()).astype(np.float32)


@pytest.mark.parametrize("epsilon", [0.03, 0.3])
@pytest.mark.parametrize("mass", [0.1, 0.6])
def test_ott_on_the_extended_problem(epsilon, mass):
    cost, mask = draw(8, 6, seed=1)
    a, b = weights(8, 2, total=1.3), weights(6, 3)
    # The paper's form, with what it pays for the dummies (xi), and a forbidden corner.
    xi = 0.5
    extended = np.full((9, 7), xi, np.float32)
    extended[:-1, :-1] = np.where(mask, cost, np.inf)
    extended[-1, -1] = np.inf
    expected = linear.solve(
        geometry.Geometry(jnp.asarray(extended), epsilon=epsilon),
        a=jnp.append(a, b.sum() - mass),
        b=jnp.append(b, a.sum() - mass),
        threshold=1e-5,
        max_iterations=20000,
    )
    assert expected.converged
    result = partial_sinkhorn(cost, mass, epsilon=epsilon, a=a, b=b, mask=mask)
    assert result.converged
    plan = expected.matrix[:-1, :-1]
    np.testing.assert_allclose(result.plan, plan, rtol=0, atol=2e-4 * plan.max())


@pytest.mark.parametrize("mass", [0.25, 0.8, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_partial_transport_as_epsilon_vanishes(mass, seed):
    ot = pytest.importorskip("ot")
    cost, mask = draw(8, 6, seed=seed)
    a, b = weights(8, seed + 10), weights(6, seed + 20)
    exact = ot.partial.partial_wasserstein(
        a.astype(float), b.astype(float), np.where(mask, cost, 1e3).astype(float), m=mass * 0.9999
    )
    result = partial_sinkhorn(
        cost, mass * 0.9999, epsilon=2e-3, a=a, b=b, mask=mask, max_iterations=20000
    )
    assert (exact[~mask] == 0).all()
    # No plan is cheaper than the exact one; plans may differ where costs are nearly equal.
    least = np.sum(exact * cost)
    assert least - 5e-4 <= result.cost <= least + 4e-3
    np.testing.assert_allclose(result.mass, mass * 0.9999, rtol=1e-3)


@pytest.mark.parametrize("shape", [(8, 6), (5, 33)])
@pytest.mark.parametrize("mass", [1e-4, 0.05, 0.5, 0.95])
def test_marginals_mass_and_mask(shape, mass):
    cost, mask = draw(*shape, seed=4)
    a, b = weights(shape[0], 5), weights(shape[1], 6, total=1.2)
    result = partial_sinkhorn(cost, mass, epsilon=0.1, a=a, b=b, mask=mask)
    plan = np.asarray(result.plan, np.float64)
    assert result.converged
    np.testing.assert_allclose([plan.sum(), result.mass], mass, rtol=1e-5)
    np.testing.assert_allclose(result.cost, np.sum(plan * cost), rtol=1e-5)
    assert (plan >= 0).all() and (plan[~mask] == 0).all() and (plan[mask] > 0).all()
    assert (plan.sum(1) <= a * (1 + 1e-3)).all() and (plan.sum(0) <= b * (1 + 1e-3)).all()


@pytest.mark.parametrize("shape", [(7, 7), (8, 7)])
def test_all_of_the_smaller_side_moves(shape):
    cost, mask = draw(*shape, seed=7)
    a, b = np.full(shape[0], 1 / 7, np.float32), np.full(shape[1], 1 / 7, np.float32)
    result = partial_sinkhorn(cost, b.sum(), epsilon=0.1, a=a, b=b, mask=mask)
    assert result.converged
    np.testing.assert_allclose(result.plan.sum(0), b, rtol=1e-4)
    assert (result.plan.sum(1) <= a * (1 + 1e-3)).all()


def test_no_mass_moves_nothing():
    cost, mask = draw(8, 6)
    result = partial_sinkhorn(cost, 0.0, epsilon=0.05, mask=mask)
    assert result.converged and not result.plan.any() and result.mass == 0 and result.cost == 0


def test_equal_costs_move_the_mass_evenly():
    result = partial_sinkhorn(jnp.zeros((8, 6)), 0.1, epsilon=0.01)
    assert result.converged
    np.testing.assert_allclose(result.plan, np.full((8, 6), 0.1 / 48), rtol=1e-5)


@pytest.mark.parametrize("mode", ["converged", "l2rm"])
def test_items_that_nothing_may_reach_stay(mode):
    cost, mask = draw(8, 6, seed=8)
    mask[3], mask[:, 2] = False, False
    result = partial_sinkhorn(cost, 0.4, epsilon=0.1, mask=mask, mode=mode)
    assert result.converged and np.isfinite(result.plan).all()
    assert not result.plan[3].any() and not result.plan[:, 2].any()


def test_items_without_weight_move_nothing():
    cost, _ = draw(8, 6)
    a = jnp.asarray([0.3, 0.0, 0.1, 0.2, 0.2, 0.0, 0.1, 0.1])
    result = partial_sinkhorn(cost, 0.7, epsilon=0.1, a=a)
    kept = np.flatnonzero(a)
    without = partial_sinkhorn(cost[kept], 0.7, epsilon=0.1, a=a[kept])
    assert not result.plan[1].any() and not result.plan[5].any()
    np.testing.assert_allclose(result.plan[kept], without.plan, atol=1e-5)


@pytest.mark.parametrize("mass", [-0.1, 1.1])
def test_impossible_mass_is_reported(mass):
    cost, _ = draw(8, 6)
    result = partial_sinkhorn(cost, mass, epsilon=0.1)
    assert not result.converged
    np.testing.assert_allclose(result.mass, np.clip(mass, 0, 1), atol=1e-5)


@pytest.mark.parametrize("allowed", [0, 3])
def test_impossible_mask_is_reported(allowed):
    cost, mask = draw(8, 6)
    mask[allowed:] = False
    result = partial_sinkhorn(cost, 0.7, epsilon=0.1, mask=mask, max_iterations=200)
    assert not result.converged and np.isfinite(result.plan).all()
    assert result.mass <= allowed / 8 + 1e-5


@pytest.mark.parametrize("mode", ["converged", "l2rm"])
def test_order_of_rows_and_columns_does_not_matter(mode):
    cost, mask = draw(8, 6, seed=9)
    a, b = weights(8, 1), weights(6, 2)
    rng = np.random.default_rng(3)
    rows, columns = rng.permutation(8), rng.permutation(6)
    plan = partial_sinkhorn(cost, 0.3, epsilon=0.1, a=a, b=b, mask=mask, mode=mode).plan
    moved = partial_sinkhorn(
        cost[rows][:, columns],
        0.3,
        epsilon=0.1,
        a=a[rows],
        b=b[columns],
        mask=mask[rows][:, columns],
        mode=mode,
    )
    np.testing.assert_allclose(moved.plan, plan[rows][:, columns], rtol=1e-3, atol=1e-7)


def test_plan_does_not_depend_on_a_constant_cost():
    cost, mask = draw(8, 6, seed=10)
    plan = partial_sinkhorn(cost, 0.3, epsilon=0.1, mask=mask).plan
    shifted = partial_sinkhorn(cost + 3.0, 0.3, epsilon=0.1, mask=mask).plan
    np.testing.assert_allclose(shifted, plan, rtol=1e-3)


@pytest.mark.parametrize("mode", ["converged", "l2rm"])
def test_vmap_and_jit_equal_a_loop(mode):
    problems = [draw(8, 6, seed=seed) for seed in range(3)]
    costs, masks = (jnp.stack([jnp.asarray(p[i]) for p in problems]) for i in (0, 1))
    masses, epsilons = jnp.asarray([0.1, 0.5, 0.9]), jnp.asarray([0.02, 0.1, 1.0])

    def solve(cost, mask, mass, epsilon):
        return partial_sinkhorn(cost, mass, epsilon=epsilon, mask=mask, mode=mode)

    together = jax.jit(jax.vmap(solve))(costs, masks, masses, epsilons)
    for i in range(3):
        alone = solve(costs[i], masks[i], masses[i], epsilons[i])
        assert together.iterations[i] == alone.iterations
        np.testing.assert_allclose(together.plan[i], alone.plan, atol=1e-6)


def test_low_precision_costs_are_solved_in_float32():
    cost, _ = draw(8, 6)
    cost = jnp.asarray(cost, jnp.bfloat16)
    result = partial_sinkhorn(cost, 0.2, epsilon=0.05)
    assert result.plan.dtype == jnp.float32
    expected = partial_sinkhorn(cost.astype(jnp.float32), 0.2, epsilon=0.05)
    np.testing.assert_array_equal(result.plan, expected.plan)


@pytest.mark.parametrize(
    ("mass", "zero_weight"), [(0.3, False), (0.9, False), (1.0, False), (0.4, True)]
)
def test_gradient_equals_finite_differences(mass, zero_weight):
    cost, mask = draw(8, 6, seed=11)
    a = weights(8, 12)
    if zero_weight:
        a[2] = 0
    read = np.random.default_rng(13).uniform(size=cost.shape)

    def score(cost, mass, a):
        plan = partial_sinkhorn(cost, mass, epsilon=0.2, a=a, mask=mask, threshold=1e-6).plan
        return jnp.sum(plan * read)

    gradients = jax.grad(score, argnums=(0, 1, 2))(jnp.asarray(cost), mass, jnp.asarray(a))
    for gradient in gradients:
        assert jnp.isfinite(gradient).all()
    assert not gradients[0][~mask].any()
    rng = np.random.default_rng(14)
    for _ in range(3):
        step = 0.02 * rng.uniform(-1, 1, cost.shape).astype(np.float32)
        slope = (score(cost + step, mass, a) - score(cost - step, mass, a)) / 2
        np.testing.assert_allclose(np.sum(gradients[0] * step), slope, rtol=0.02, atol=1e-5)
    if mass < 0.9:
        slope = (score(cost, mass + 0.02, a) - score(cost, mass - 0.02, a)) / 0.04
        np.testing.assert_allclose(gradients[1], slope, rtol=0.02)
        step = 0.02 * rng.uniform(-1, 1, a.shape).astype(np.float32) * a
        slope = (score(cost, mass, a + step) - score(cost, mass, a - step)) / 2
        np.testing.assert_allclose(np.sum(gradients[2] * step), slope, rtol=0.03, atol=1e-5)


@pytest.mark.parametrize("mass", [0.0, 0.1])
def test_gradient_is_finite_at_the_edges(mass):
    cost, mask = draw(8, 6)
    mask[1] = False
    gradient = jax.grad(lambda c: partial_sinkhorn(c, mass, epsilon=0.01, mask=mask).cost)(
        jnp.asarray(cost)
    )
    assert jnp.isfinite(gradient).all()


def test_l2rm_plan_is_a_constant():
    cost = jnp.asarray(draw(8, 6)[0])
    gradient = jax.grad(lambda c: partial_sinkhorn(c, 0.2, epsilon=0.1, mode="l2rm").plan[0].sum())(
        cost
    )
    assert not gradient.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cost": jnp.zeros(3)}, r"matrices.*\(3,\)"),
        ({"cost": jnp.zeros((0, 3))}, r"non-empty"),
        ({"a": jnp.ones(4)}, r"a must have shape \(3,\) .* found \(4,\)"),
        ({"b": jnp.ones(3)}, r"b must have shape \(4,\) .* found \(3,\)"),
        ({"mask": jnp.ones((4, 3), bool)}, r"mask must have shape \(3, 4\)"),
        ({"mode": "exact"}, r"mode.*'exact'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    arguments = {"cost": jnp.zeros((3, 4)), **arguments}
    with pytest.raises(ValueError, match=message):
        partial_sinkhorn(mass=0.1, epsilon=0.1, **arguments)
