"""Few-iteration matching: its limits, its invariances, and Algorithm A1 of OMIT word for word."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ott.geometry.geometry import Geometry
from ott.solvers import linear

from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.ot.matching import match, project

project = jax.jit(project, static_argnames="iterations")
match = jax.jit(match, static_argnames=("epsilon", "iterations"))
EPSILON = 0.1
RNG = np.random.default_rng(0)
COST = RNG.uniform(0, 2, (3, 7, 5)).astype(np.float32)
A = RNG.dirichlet(np.full(7, 5), 3).astype(np.float32)
B = RNG.dirichlet(np.full(5, 5), 3).astype(np.float32)


def algorithm(cost, a, b, epsilon, iterations):
    """Run the paper's iterations as printed, in float64."""
    plan = np.exp(-np.float64(cost) / epsilon)
    for _ in range(iterations):
        plan *= (a / plan.sum(1))[:, None]
        plan *= (b / plan.sum(0))[None, :]
    return plan


def with_dustbins(cost, a, b, mass):
    """Add dustbins in front, as in OMIT Eq. 4, with weights that leave `mass` to other items."""
    extended = np.pad(cost, ((1, 0), (1, 0)))
    extended[0, 0] = np.inf
    return extended, np.append(b.sum() - mass, a), np.append(a.sum() - mass, b)


@pytest.mark.parametrize("epsilon", [0.02, 0.5])
@pytest.mark.parametrize("iterations", [1, 3])
def test_equals_the_algorithm_of_the_paper(epsilon, iterations):
    plan = match(COST, A, B, epsilon=epsilon, iterations=iterations)
    expected = [algorithm(*x, epsilon, iterations) for x in zip(COST, A, B, strict=True)]
    np.testing.assert_allclose(plan, expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(plan.sum(-2), B, rtol=1e-5)


def test_costs_that_underflow():
    """One word is far from every region, and the kernel's largest entry underflows float32."""
    cost = np.array([[0.0, 1.9, 1.95], [0.1, 2.0, 1.9]], np.float32) + 1.0
    a, b = np.full(2, 1 / 2), np.full(3, 1 / 3)
    plan = match(cost, a, b, epsilon=0.01, iterations=3)
    np.testing.assert_allclose(plan, algorithm(cost, a, b, 0.01, 3), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_many_iterations_give_the_partial_plan():
    mass = 0.4
    problems = [with_dustbins(*x, mass) for x in zip(COST, A, B, strict=True)]
    cost, a, b = (np.stack(x).astype(np.float32) for x in zip(*problems, strict=True))
    plan = match(cost, a, b, epsilon=EPSILON, iterations=3)
    for _ in range(100):
        plan = project(plan, a, b, iterations=3)
    plan = plan[:, 1:, 1:]
    ours = jax.vmap(partial(partial_sinkhorn, epsilon=EPSILON))
    solved = ours(COST, jnp.full(3, mass), a=A, b=B)
    np.testing.assert_allclose(plan, solved.plan, atol=2e-5 * np.max(solved.plan))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # of ott-jax
        theirs = linear.solve(Geometry(cost[0], epsilon=EPSILON), a[0], b[0], threshold=1e-6)
    np.testing.assert_allclose(plan[0], theirs.matrix[1:, 1:], atol=2e-5)


def test_dustbins_without_weight_have_no_effect():
    extended = np.pad(COST, ((0, 0), (1, 0), (1, 0)))
    a, b = (np.pad(x, ((0, 0), (1, 0))) for x in (A, B))
    plan = match(extended, a, b, epsilon=EPSILON, iterations=3)
    without = match(COST, A, B, epsilon=EPSILON, iterations=3)
    np.testing.assert_allclose(plan[:, 1:, 1:], without, rtol=1e-6)
    assert not plan[:, 0].any() and not plan[:, :, 0].any()


@pytest.mark.parametrize("content", [0.0, -50.0, np.inf, np.nan])
def test_padding_changes_nothing(content):
    """Neither the plan nor its gradient depends on the content of the padding."""

    def value(cost, a, b):
        return jnp.sum(match(cost, a, b, epsilon=EPSILON, iterations=3) ** 2)

    wide = np.pad(COST, ((0, 0), (0, 2), (0, 3)), constant_values=content)
    a, b = np.pad(A, ((0, 0), (0, 2))), np.pad(B, ((0, 0), (0, 3)))
    plan = match(wide, a, b, epsilon=EPSILON, iterations=3)
    np.testing.assert_allclose(
        plan[:, :7, :5], match(COST, A, B, epsilon=EPSILON, iterations=3), rtol=1e-6
    )
    assert not plan[:, 7:].any() and not plan[:, :, 5:].any()
    grad, wide_grad = jax.grad(value)(COST, A, B), jax.grad(value)(wide, a, b)
    np.testing.assert_allclose(wide_grad[:, :7, :5], grad, rtol=1e-4, atol=1e-7)
    assert not wide_grad[:, 7:].any() and not wide_grad[:, :, 5:].any()


@pytest.mark.parametrize("total", [1e-9, 1e9])
def test_scale_of_the_weights_does_not_matter(total):
    scaled = match(COST, total * A, total * B, epsilon=EPSILON, iterations=3)
    plan = match(COST, A, B, epsilon=EPSILON, iterations=3)
    np.testing.assert_allclose(scaled, total * plan, rtol=1e-5)


def test_reordered_items_give_the_reordered_plan():
    rows, columns = RNG.permutation(7), RNG.permutation(5)
    moved = match(
        COST[:, rows][:, :, columns], A[:, rows], B[:, columns], epsilon=EPSILON, iterations=3
    )
    plan = match(COST, A, B, epsilon=EPSILON, iterations=3)
    np.testing.assert_allclose(moved, plan[:, rows][:, :, columns], rtol=1e-5, atol=1e-8)


def test_gradient_is_that_of_the_unrolled_iterations():
    """Compare with finite differences of the float64 algorithm."""
    weights = RNG.normal(size=(7, 5))

    def value(cost):
        return np.sum(weights * algorithm(cost, A[0], B[0], EPSILON, 3))

    step, expected = 1e-5, np.zeros((7, 5))
    for at in np.ndindex(7, 5):
        change = np.zeros((7, 5))
        change[at] = step
        expected[at] = (value(COST[0] + change) - value(COST[0] - change)) / (2 * step)
    gradient = jax.grad(
        lambda cost: jnp.sum(weights * match(cost, A[0], B[0], epsilon=EPSILON, iterations=3))
    )(COST[0])
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
