"""Masked partial Sinkhorn: properties of plans, reported errors, batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.ot import batch, partial_sinkhorn
from tests.ot.problems import draw, weights


def test_no_mass_moves_nothing():
    cost, mask = draw(8, 6)
    result = partial_sinkhorn(cost, 0.0, epsilon=0.05, mask=mask)
    assert result.converged and not result.plan.any() and result.mass == 0 and result.cost == 0


def test_equal_costs_move_the_mass_evenly():
    result = partial_sinkhorn(jnp.zeros((8, 6)), 0.1, epsilon=0.01)
    assert result.converged
    np.testing.assert_allclose(result.plan, np.full((8, 6), 0.1 / 48), rtol=1e-5)


@pytest.mark.parametrize("mode", ["converged", "l2rm"])
def test_items_without_an_allowed_pair_stay(mode):
    cost, mask = draw(8, 6, seed=8)
    mask[3], mask[:, 2] = False, False
    result = partial_sinkhorn(cost, 0.4, epsilon=0.1, mask=mask, mode=mode)
    assert result.converged and np.isfinite(result.plan).all()
    assert not result.plan[3].any() and not result.plan[:, 2].any()


@pytest.mark.parametrize("mass", [-0.1, 1.1])
def test_impossible_mass_is_reported(mass):
    cost, _ = draw(8, 6)
    result = partial_sinkhorn(cost, mass, epsilon=0.1)
    assert not result.converged
    np.testing.assert_allclose(result.mass, np.clip(mass, 0, 1), atol=1e-5)


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


def test_low_precision_costs_are_solved_in_float32():
    cost, _ = draw(8, 6)
    cost = jnp.asarray(cost, jnp.bfloat16)
    result = partial_sinkhorn(cost, 0.2, epsilon=0.05)
    assert result.plan.dtype == jnp.float32
    expected = partial_sinkhorn(cost.astype(jnp.float32), 0.2, epsilon=0.05)
    np.testing.assert_array_equal(result.plan, expected.plan)


@pytest.mark.usefixtures("unchecked_arrays")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cost": jnp.zeros(3)}, r"cost: found shape \(3,\)"),
        ({"cost": jnp.zeros((0, 3))}, r"non-empty"),
        ({"a": jnp.ones(4)}, r"a: .*\(4,\).*\(3,\)"),
        ({"b": jnp.ones(3)}, r"b: .*\(3,\).*\(4,\)"),
        ({"mask": jnp.ones((4, 3), bool)}, r"mask: .*\(3, 4\)"),
        ({"mode": "exact"}, r"mode.*'exact'"),
        ({"max_iterations": 0}, r"max_iterations: found 0"),
        ({"a": jnp.ones((4, 3)), "mask": jnp.ones((2, 3, 4))}, r"a \(4,\).*mask \(2,\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    arguments = {"cost": jnp.zeros((3, 4)), **arguments}
    with pytest.raises(ValueError, match=message):
        partial_sinkhorn(mass=0.1, epsilon=0.1, **arguments)


def test_a_traced_number_of_fixed_iterations_is_refused():
    def solve(count):
        return partial_sinkhorn(
            jnp.zeros((3, 4)), 0.1, epsilon=0.1, mode="fixed", max_iterations=count
        )

    with pytest.raises(ValueError, match=r"max_iterations: .* mode 'fixed'"):
        jax.jit(solve)(3)


def test_cost_grows_with_the_mass():
    cost, mask = draw(8, 6, seed=12)
    results = [
        partial_sinkhorn(cost, mass, epsilon=0.02, mask=mask) for mass in np.linspace(0.05, 1, 8)
    ]
    assert all(result.converged for result in results)
    assert (np.diff([result.cost for result in results]) > 0).all()
    # The cost is convex in the mass: its slope grows too.
    assert (np.diff([result.price for result in results]) > 0).all()


def test_row_and_column_shifts_are_free_only_when_all_mass_moves():
    cost, _ = draw(6, 6, seed=9)
    shifted = cost + weights(6, 1)[:, None] - weights(6, 2)[None, :]
    for mass, same in ((1.0, True), (0.5, False)):
        plans = [partial_sinkhorn(c, mass, epsilon=0.1).plan for c in (cost, shifted)]
        assert (np.abs(plans[0] - plans[1]).sum() < 1e-5) == same


def test_scale_of_the_weights_does_not_matter():
    cost, mask = draw(8, 6, seed=9)
    a, b = weights(8, 1), weights(6, 2)
    expected = partial_sinkhorn(cost, 0.3, epsilon=0.1, a=a, b=b, mask=mask)
    large = partial_sinkhorn(cost, 300.0, epsilon=0.1, a=1e3 * a, b=1e3 * b, mask=mask)
    np.testing.assert_allclose(large.plan, 1e3 * expected.plan, rtol=1e-4)
    assert large.converged and large.marginal_error < 1e-6


def test_plan_and_kept_weights_follow_from_the_potentials():
    cost, mask = draw(8, 6, seed=9)
    a, b = weights(8, 1, total=1.5), weights(6, 2)
    mask[2], a[3] = False, 0.0
    result = partial_sinkhorn(cost, 0.3, epsilon=0.1, a=a, b=b, mask=mask)
    exponents = result.f[:, None] + result.g[None, :] + result.price - cost
    live = mask & (a > 0)[:, None]
    np.testing.assert_allclose(result.plan, np.exp(exponents / 0.1) * live, rtol=1e-4)
    kept = np.exp(result.f / 0.1) * (a > 0)
    np.testing.assert_allclose(kept, a - result.plan.sum(1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(kept[2], a[2], rtol=1e-5)
    np.testing.assert_allclose(np.exp(result.g / 0.1), b - result.plan.sum(0), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_warm_start():
    cost, mask = draw(8, 6, seed=4)
    cold = partial_sinkhorn(cost, 0.9, epsilon=0.03, mask=mask)
    warm = partial_sinkhorn(cost, 0.9, epsilon=0.03, mask=mask, start=cold.g + 3.0)
    assert warm.converged and 2 * warm.iterations < cold.iterations
    np.testing.assert_allclose(warm.plan, cold.plan, atol=1e-6)


def test_a_mask_that_is_impossible_in_a_subtle_way_is_reported():
    """Rows and columns have enough weight, but all allowed pairs share one row or one column."""
    cost, mask = draw(8, 6)
    mask[1:, 1:] = False
    mask[0], mask[:, 0] = True, True
    result = partial_sinkhorn(cost, 0.9, epsilon=0.1, mask=mask, max_iterations=200)
    assert not result.converged and np.isfinite(result.plan).all()
    assert max(result.marginal_error, result.mass_error) > 0.1


def several(count):
    drawn = [draw(8, 6, seed=seed) for seed in range(count)]
    return (jnp.stack([jnp.asarray(problem[i]) for problem in drawn]) for i in (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["converged", "fixed", "l2rm"])
def test_batch_equals_a_loop(mode):
    """Leading axes broadcast: two costs, three masses, each with its epsilon."""
    costs, masks = several(2)
    masses, epsilons = jnp.asarray([[0.1], [0.5], [0.9]]), jnp.asarray([[0.02], [0.1], [1.0]])
    together = partial_sinkhorn(costs, masses, epsilon=epsilons, mask=masks, mode=mode)
    assert together.plan.shape == (3, 2, 8, 6) and together.f.shape == (3, 2, 8)
    for i, k in np.ndindex(3, 2):
        alone = partial_sinkhorn(
            costs[k], masses[i, 0], epsilon=epsilons[i, 0], mask=masks[k], mode=mode
        )
        assert together.iterations[i, k] == alone.iterations  # frozen where it stopped
        np.testing.assert_allclose(together.plan[i, k], alone.plan, atol=1e-6)
        np.testing.assert_allclose(together.value[i, k], alone.value, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("entries", [batch._CHUNK_ENTRIES, 2 * 8 * 6])
def test_a_shared_cost_gets_the_sum_of_the_gradients(monkeypatch, entries):
    """One cost and many masses, solved all at once and two at a time."""
    monkeypatch.setattr(batch, "_CHUNK_ENTRIES", entries)
    cost, mask = draw(8, 6, seed=9)
    masses = jnp.linspace(0.1, 0.9, 5 if entries == batch._CHUNK_ENTRIES else 6)

    def moved(cost, mass):
        return partial_sinkhorn(cost, mass, epsilon=0.1, mask=mask).cost.sum()

    together, alone = moved(cost, masses), [moved(cost, mass) for mass in masses]
    np.testing.assert_allclose(together, sum(alone), rtol=1e-5)
    gradients = [jax.grad(moved)(cost, mass) for mass in masses]
    np.testing.assert_allclose(jax.grad(moved)(cost, masses), sum(gradients), atol=1e-6)


@pytest.mark.slow
def test_gradient_through_chunks_of_a_batch(monkeypatch):
    costs, _ = several(7)
    monkeypatch.setattr(batch, "_CHUNK_ENTRIES", 2 * 8 * 6)  # two at a time, and one left over

    def score(cost):
        return jnp.sum(partial_sinkhorn(cost, 0.5, epsilon=0.1).plan ** 2)

    gradients = jax.grad(score)(costs)
    for i, cost in enumerate(costs):
        np.testing.assert_allclose(gradients[i], jax.grad(score)(cost), atol=1e-6)


@pytest.mark.slow
def test_four_devices_equal_one():
    costs, _ = several(4)
    spread = jax.pmap(lambda cost: partial_sinkhorn(cost, 0.3, epsilon=0.1))(costs)
    for i, cost in enumerate(costs):
        alone = partial_sinkhorn(cost, 0.3, epsilon=0.1)
        assert spread.iterations[i] == alone.iterations
        np.testing.assert_allclose(spread.plan[i], alone.plan, atol=1e-7)
