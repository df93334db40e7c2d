"""Ends of ranges, weights of very different size, and values that must not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench import solver
from l2rm_jax.ot import partial_sinkhorn
from tests.ot.problems import draw, weights

SIZE = (5, 6)
MODES = ["converged", "fixed", "l2rm"]


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e7, 1e8])
def test_weights_of_one_side_may_be_much_larger(scale):
    """With equal rows, columns affect each other through the mass alone."""
    cost = np.tile(np.arange(4.0), (3, 1))
    mass = min(1.0, scale)
    result = partial_sinkhorn(cost, mass, epsilon=0.1, a=np.full(3, scale), b=np.ones(4))
    # If no row is short of weight, column j keeps e^(10 j) times its moved mass, up to a factor
    # that is the same for all columns.
    if scale > 1:
        low, high = -100.0, 100.0
        for _ in range(100):
            delta = (low + high) / 2
            moved = 1 / (1 + np.exp(10 * np.arange(4.0) + delta))
            low, high = (delta, high) if moved.sum() > mass else (low, delta)
        np.testing.assert_allclose(result.plan.sum(0), moved, rtol=1e-4)
    assert result.converged and result.mass_error < 1e-6 and result.marginal_error < 1e-6


@pytest.mark.slow
def test_a_heavy_row_that_may_not_move_changes_nothing():
    cost, mask = draw(8, 6, seed=5)
    a = weights(8, 1)
    heavy = mask.copy()
    heavy[0] = False
    plans = [
        partial_sinkhorn(cost, 0.1, epsilon=0.1, a=np.append(first, a[1:]), mask=heavy).plan
        for first in (0.0, 1e8)
    ]
    np.testing.assert_allclose(plans[1], plans[0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "wide"), [("converged", False), ("fixed", True)])
def test_the_gradient_in_the_mass_is_one_sided_at_both_ends(mode, wide):
    cost = np.random.default_rng(3).uniform(size=(5, 4))
    stop = {"threshold": 1e-13} if wide else {}
    with jax.enable_x64(wide):

        @jax.jit
        @jax.value_and_grad
        def transported(mass):
            more = stop if mode == "converged" else {"max_iterations": 60}
            return partial_sinkhorn(jnp.asarray(cost), mass, epsilon=0.1, mode=mode, **more).cost

        step = 1e-6 if wide else 1e-3
        for end, inside in ((0.0, step), (1.0, 1.0 - step)):
            expected = (transported(inside)[0] - transported(end)[0]) / (inside - end)
            np.testing.assert_allclose(transported(end)[1], expected, rtol=1e-5 if wide else 1e-3)


@pytest.mark.slow
def test_the_gradient_of_the_value_in_the_mass_at_both_ends():
    """The gradient is unbounded towards the ends, where it is clipped, not halved."""
    cost, _ = draw(5, 4)
    for mass in (0.0, 1.0):
        slope = jax.grad(lambda mass: partial_sinkhorn(cost, mass, epsilon=0.1).value)(mass)
        price = partial_sinkhorn(cost, mass, epsilon=0.1).price
        np.testing.assert_allclose(slope, price - 0.1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_masses_have_gradients(dtype):
    """Gradients at a mass of 1e-7, divided by the mass, are those at a mass of 1e-3."""
    cost, _ = draw(5, 6)

    def slopes(mass, dtype):
        a, b = (jnp.asarray(weights(n, n), dtype) for n in SIZE)
        read = np.random.default_rng(1).uniform(size=SIZE).astype(dtype)

        def score(cost, a, b):
            return jnp.sum(partial_sinkhorn(cost, mass, epsilon=0.1, a=a, b=b).plan * read) / mass

        return jax.grad(score, (0, 1, 2))(jnp.asarray(cost, dtype), a, b)

    with jax.enable_x64(True):
        expected = slopes(1e-3, jnp.float64)
        for small, large in zip(slopes(1e-7, dtype), expected, strict=True):
            np.testing.assert_allclose(small, large, rtol=0, atol=0.02 * np.abs(large).max())


@pytest.mark.slow
@pytest.mark.parametrize("content", [-50.0, 50.0, np.nan, np.inf])
@pytest.mark.parametrize("mode", MODES)
def test_padding_changes_nothing(mode, content):
    cost, mask = draw(8, 6, seed=6)
    a, b = weights(8, 1), weights(6, 2, total=1.2)
    wide = np.pad(cost, ((0, 2), (0, 3)), constant_values=content)
    padded = {"a": np.pad(a, (0, 2)), "b": np.pad(b, (0, 3))}
    padded["mask"] = np.pad(mask, ((0, 2), (0, 3)), constant_values=True)
    padded_result = partial_sinkhorn(wide, 0.3, epsilon=0.1, mode=mode, **padded)
    expected = partial_sinkhorn(cost, 0.3, epsilon=0.1, a=a, b=b, mask=mask, mode=mode)
    assert padded_result.iterations == expected.iterations
    assert padded_result.converged and expected.converged
    np.testing.assert_allclose(padded_result.plan[:8, :6], expected.plan, rtol=2e-5, atol=1e-9)
    np.testing.assert_allclose(padded_result.value, expected.value, rtol=1e-5)
    assert not padded_result.plan[8:].any() and not padded_result.plan[:, 6:].any()
    assert not padded_result.f[8:].any() and not padded_result.g[6:].any()


@pytest.mark.parametrize("mode", MODES)
def test_a_problem_that_is_all_padding_is_solved(mode):
    cost = jnp.ones((4, 3))
    problem = {"a": jnp.zeros(4), "b": jnp.zeros(3), "mode": mode}
    result = partial_sinkhorn(cost, 0.0, epsilon=0.1, **problem)
    assert result.converged and not result.plan.any()
    assert result.marginal_error == 0 and result.mass_error == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": -0.1},
        {"epsilon": 0.0},
        {"a": np.array([0.5, -0.1, 0.6])},
        {"mass": 1.000009},
        {"mass": np.nan},
        {"mask": np.array([[True], [False], [False]]) & np.ones((3, 4), bool)},  # allows 1 / 3
        {"cost": np.where(np.arange(12).reshape(3, 4) == 7, np.nan, 0.5)},
    ],
    ids=["negative epsilon", "no epsilon", "negative weight", "more mass", "nan", "mask", "cost"],
)
def test_arguments_out_of_range_do_not_converge(mode, change):
    problem = {"cost": draw(3, 4)[0], "mass": 0.4, "epsilon": 0.1, **change}
    assert not partial_sinkhorn(mode=mode, **problem).converged


@pytest.mark.slow
def test_the_rounded_sum_of_many_weights_is_a_possible_mass():
    a = weights(3000, 1)
    mass = np.add.accumulate(a)[-1]  # adding one after another rounds most
    assert partial_sinkhorn(np.zeros((3000, 2)), mass, epsilon=0.1, a=a, b=np.ones(2)).converged


@pytest.mark.slow
def test_an_infinite_cost_is_a_mask():
    cost, mask = draw(5, 6)
    infinite = np.where(mask, cost, np.inf)

    def both(epsilon, cost, **more):
        result = partial_sinkhorn(cost, 0.4, epsilon=epsilon, **more)
        return result.cost + result.value

    by_cost = jax.value_and_grad(both, (0, 1))(0.1, infinite)
    by_mask = jax.value_and_grad(both, (0, 1))(0.1, cost, mask=mask)
    jax.tree.map(np.testing.assert_array_equal, by_cost, by_mask)


@pytest.mark.slow
def test_items_without_weight_have_no_gradient():
    cost, _ = draw(5, 6)
    a = jnp.asarray(weights(5, 1)).at[2].set(0.0)

    def value(a):
        return partial_sinkhorn(cost, 0.3, epsilon=0.1, a=a).value

    gradient = jax.grad(value)(a)
    assert gradient[2] == 0 and (gradient[jnp.array([0, 1, 3, 4])] != 0).all()


@pytest.mark.slow
def test_forward_mode_goes_through_a_fixed_number_of_iterations():
    cost, mask = draw(5, 6)
    change = jnp.asarray(np.random.default_rng(2).uniform(size=SIZE), jnp.float32)

    def moved(cost):
        return partial_sinkhorn(
            cost, 0.4, epsilon=0.1, mask=mask, mode="fixed", max_iterations=5
        ).cost

    _, forward = jax.jvp(moved, (jnp.asarray(cost),), (change,))
    np.testing.assert_allclose(forward, jnp.sum(jax.grad(moved)(cost) * change), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("n", [32, 512])
@pytest.mark.parametrize("kind", ["random", "learned"])
def test_much_mass_at_a_small_epsilon(kind, n):
    """Nearly all weight moves: without Newton steps, this takes thousands of iterations."""
    cost = solver.draw(kind, n, batch=1)
    for mass in (0.1, 0.5, 0.9, 0.999):
        for epsilon in (0.01, 0.003):
            result = partial_sinkhorn(cost, mass, epsilon=epsilon)
            assert result.converged and result.iterations <= 250, (mass, epsilon)


@pytest.mark.slow
def test_a_tiny_epsilon_takes_few_newton_steps():
    """The kernel is recomputed often, which alone must not trigger a Newton step."""
    cost = np.random.default_rng(0).uniform(size=(24, 24)).astype(np.float32)
    result = partial_sinkhorn(cost, 0.5, epsilon=1e-4)
    assert result.converged and result.iterations <= 400


@pytest.mark.slow
@pytest.mark.parametrize("heavy", [1e4, 1e6, 1e8])
def test_heavy_rows_do_not_mislead_a_newton_step(heavy):
    cost = np.random.default_rng(0).uniform(size=(24, 24)).astype(np.float32)
    a = np.array([heavy, heavy, *[0.5] * 22])
    result = partial_sinkhorn(cost, 20.0, epsilon=0.005, a=a, b=np.ones(24))
    assert result.converged and result.iterations <= 90


@pytest.mark.slow
@pytest.mark.parametrize("extra_cost", [100.0, 1e5])
@pytest.mark.parametrize("side", [0, 1])
def test_a_very_expensive_item(extra_cost, side):
    """A row or column that costs thousands of epsilons more stays unless it has to move."""
    cost = np.random.default_rng(0).uniform(size=(16, 16)).astype(np.float32)
    cost = jnp.asarray(np.swapaxes(cost, 0, side)).at[3].add(extra_cost)
    cost = jnp.swapaxes(cost, 0, side)
    stays = partial_sinkhorn(cost, 0.1, epsilon=0.01)
    assert stays.converged
    potentials = (stays.f, stays.g)[side]
    np.testing.assert_allclose(potentials[3], 0.01 * np.log(1 / 16), rtol=1e-5)
    gradient = jax.grad(lambda cost: partial_sinkhorn(cost, 0.1, epsilon=0.01).cost)(cost)
    assert jnp.isfinite(gradient).all()
    moves = partial_sinkhorn(cost, 0.95, epsilon=0.01)
    assert moves.converged and moves.iterations <= 200
    kept = 0.05  # all the kept weight is the expensive item's
    assert moves.plan.sum(1 - side)[3] == pytest.approx(1 / 16 - kept, abs=1e-5)


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("side", [0, 1])
def test_an_item_whose_moved_weight_underflows_has_the_potential_of_its_weight(side, iterations):
    cost = np.random.default_rng(0).uniform(size=(16, 16)).astype(np.float32)
    np.swapaxes(cost, 0, side)[3] += 5.0  # 500 epsilons
    weights = np.where(np.arange(16) == 3, 20.0, 1 / 16).astype(np.float32)
    limits = {"threshold": 0.0, "max_iterations": iterations}
    result = partial_sinkhorn(cost, 0.1, epsilon=0.01, **{"ab"[side]: weights}, **limits)
    potentials = (result.f, result.g)[side]
    np.testing.assert_allclose(potentials[3], 0.01 * np.log(20), rtol=1e-5)


@pytest.mark.parametrize("start", [np.linspace(0, 1e3, 16), np.full(16, 1e4), 50 * np.eye(16)[2]])
def test_a_start_that_is_far_away(start):
    cost = np.random.default_rng(0).uniform(size=(16, 16)).astype(np.float32)
    near = partial_sinkhorn(cost, 0.1, epsilon=0.01)
    far = partial_sinkhorn(cost, 0.1, epsilon=0.01, start=start)
    assert far.converged and far.iterations <= 20
    np.testing.assert_allclose(far.value, near.value, rtol=1e-5)
