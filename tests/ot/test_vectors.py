"""The solver without a matrix agrees with the solver that has one."""

import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.ot import partial_sinkhorn, partial_sinkhorn_of, vectors
from tests.ot.problems import weights

N, M, MASS, EPSILON = 23, 31, 0.6, 0.05


@pytest.fixture
def sides(monkeypatch):
    """Unit vectors; a block holds seven rows, so that the last one is filled up."""
    monkeypatch.setattr(vectors, "_BLOCK_ENTRIES", 7 * M)
    rng = np.random.default_rng(0)
    drawn = (rng.standard_normal((size, 8)).astype(np.float32) for size in (N, M))
    return [x / np.linalg.norm(x, axis=1, keepdims=True) for x in drawn]


def test_plan_is_that_of_the_dense_solver(sides):
    images, captions = sides
    own = np.random.default_rng(1).integers(-1, N, M)
    a, b = weights(N, 1), weights(M, 2)
    a[3] = b[5] = 0
    mask = own[None, :] != np.arange(N)[:, None]
    dense = partial_sinkhorn(1 - images @ captions.T, MASS, epsilon=EPSILON, a=a, b=b, mask=mask)
    result = partial_sinkhorn_of(
        images, captions, MASS, epsilon=EPSILON, a=a, b=b, own=own, threshold=1e-6
    )
    assert result.converged and result.error <= 1e-6
    plan = np.asarray(result.times(jnp.eye(M)))
    assert np.abs(plan - dense.plan).sum() < 1e-5 * MASS
    assert not plan[~mask].any() and not plan[3].any() and not plan[:, 5].any()
    np.testing.assert_allclose(plan.sum(1), result.rows_moved, atol=1e-6)
    columns, values = result.leading(4)
    expected = -np.sort(-plan, axis=1)[:, :4]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(np.take_along_axis(plan, columns, 1), expected, rtol=1e-5, atol=1e-9)
    scale = np.linspace(0, 2, M).astype(np.float32)
    expected = -np.sort(-(plan * scale), axis=1)[:, :4]
    np.testing.assert_allclose(result.leading(4, scale)[1], expected, rtol=1e-5, atol=1e-9)


def squared_distance(images, captions):
    return ((images[:, None, :] - captions[None, :, :]) ** 2).sum(-1)


def test_another_cost(sides):
    dense = partial_sinkhorn(squared_distance(*sides), MASS, epsilon=EPSILON)
    result = partial_sinkhorn_of(
        *sides, MASS, epsilon=EPSILON, cost=squared_distance, threshold=1e-6
    )
    np.testing.assert_allclose(result.times(jnp.eye(M)), dense.plan, atol=1e-6)


def test_an_item_without_an_allowed_pair_keeps_its_weight(sides):
    images, captions = (x[:2] for x in sides)
    result = partial_sinkhorn_of(images, captions, 0.4, epsilon=0.1, own=np.zeros(2, int))
    assert result.converged
    assert result.rows_moved[0] == 0
    np.testing.assert_allclose(np.asarray(result.times(np.eye(2, dtype=np.float32))).sum(), 0.4)


@pytest.mark.parametrize(("mass", "epsilon"), [(1.5, 0.1), (-0.1, 0.1), (0.5, 0.0)])
def test_bad_values_do_not_converge(sides, mass, epsilon):
    assert not partial_sinkhorn_of(*sides, mass, epsilon=epsilon, max_iterations=3).converged


def test_bad_shapes_are_refused(sides, unchecked_arrays):
    images, captions = sides
    with pytest.raises(ValueError, match=r"a: .*\(31,\).*\(23,\)"):
        partial_sinkhorn_of(images, captions, 0.5, epsilon=0.1, a=np.ones(M))
    with pytest.raises(ValueError, match="non-empty matrices"):
        partial_sinkhorn_of(images[0], captions, 0.5, epsilon=0.1)
    with pytest.raises(ValueError, match="found 0, expected at least 1"):
        partial_sinkhorn_of(images, captions, 0.5, epsilon=0.1, max_iterations=0)
