"""CCA: moments against loops, the model against a generalised eigenproblem of scipy, and spans."""

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_info, threadpool_limits

from l2rm_jax.linear import cca
from l2rm_jax.linear.cca import Ridge, fit, moments
from l2rm_jax.linear.span import ridge_in, span, whole
from l2rm_jax.linear.threads import limit_threads


@pytest.fixture
def pairs(monkeypatch):
    """70 pairs of 40 images, read in blocks of 32."""
    monkeypatch.setattr(cca, "BLOCK", 32)
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 40, 70)
    hidden = rng.standard_normal((40, 3))
    images = hidden @ rng.standard_normal((3, 6)) + 0.5 * rng.standard_normal((40, 6)) + 2
    captions = hidden[stored] @ rng.standard_normal((3, 5)) + 0.5 * rng.standard_normal((70, 5))
    return images.astype(np.float32), captions.astype(np.float32), stored


def test_moments_equal_a_loop(pairs):
    images, captions, _ = pairs
    rng = np.random.default_rng(1)
    image_rows, caption_rows = rng.integers(0, 40, 45), rng.integers(0, 70, 45)
    weights = rng.random((2, 45)).astype(np.float32)
    expected = np.zeros((2, 12, 12))
    for model in range(2):
        for weight, i, c in zip(weights[model], image_rows, caption_rows, strict=True):
            z = np.concatenate([[1], images[i], captions[c]])
            expected[model] += weight * np.outer(z, z)
    found = moments(images, captions, image_rows, caption_rows, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("swap", [False, True], ids=["more image dimensions", "fewer"])
def test_model_solves_the_eigenproblem(pairs, swap):
    images, captions, stored = pairs
    x, y = images[stored].astype(np.float64), captions.astype(np.float64)
    x, y = (y, x) if swap else (x, y)
    weights = np.random.default_rng(2).random(70)
    z = np.concatenate([np.ones((70, 1)), x, y], axis=1)
    model = fit((z * weights[:, None]).T @ z, x.shape[1], Ridge(0.5, 0.2), components=4)

    def covariance(a, b):
        return np.cov(np.concatenate([a, b], 1).T, aweights=weights, ddof=0)

    full, d = covariance(x, y), x.shape[1]
    cx = full[:d, :d] + 0.5 * np.trace(full[:d, :d]) / d * np.eye(d)
    cy = full[d:, d:] + 0.2 * np.trace(full[d:, d:]) / len(full[d:]) * np.eye(len(full) - d)
    cross = full[:d, d:]
    values, vectors = scipy.linalg.eigh(cross @ np.linalg.solve(cy, cross.T), cx)
    values, vectors = values[::-1][:4], vectors[:, ::-1][:, :4]
    np.testing.assert_allclose(model.correlations, np.sqrt(values), rtol=1e-4)
    other = np.linalg.solve(cy, cross.T @ vectors) / np.sqrt(values)
    weighted = values**0.75
    a = (x - np.average(x, 0, weights)) @ vectors * weighted
    b = (y - np.average(y, 0, weights)) @ other * weighted
    cosines = (a @ b.T) / np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    found = model.encode_images(x) @ model.encode_captions(y).T
    np.testing.assert_allclose(found, cosines, atol=2e-4)


def test_components_beyond_the_dimensions_and_constant_sides():
    rng = np.random.default_rng(3)
    z = np.concatenate([np.ones((30, 1)), rng.standard_normal((30, 3)), np.ones((30, 2))], axis=1)
    model = fit(z.T @ z, 3, Ridge(1, 1))
    assert model.image_map.shape == (3, 2) and np.isfinite(model.caption_map).all()
    assert model.correlations.max() < 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_vectors_far_from_zero_along_one_direction(seed):
    """Rounding their squares to float32 loses more than all their variance, even below 0."""
    rng = np.random.default_rng(seed)
    images, captions = (1e2 + 1e-4 * rng.standard_normal((2, 24, 512))).astype(np.float32)
    rows = np.arange(24)
    model = fit(moments(images, captions, rows, rows, np.ones((1, 24)))[0], 512, Ridge(1, 1))
    assert np.isfinite(model.image_map).all() and np.isfinite(model.caption_map).all()


@pytest.mark.parametrize("dimensions", [(60, 50), (60, 8), (6, 50)])
def test_model_of_coordinates_is_that_of_the_vectors(dimensions):
    rng = np.random.default_rng(0)
    count, ridge, rows = 40, Ridge(1, 3), np.arange(40)
    hidden = rng.standard_normal((count, 4))
    images, captions = (
        (hidden @ rng.standard_normal((4, d)) + rng.standard_normal((count, d)) + 2).astype("f4")
        for d in dimensions
    )
    weights = rng.random((1, count)).astype(np.float32)

    def model(a, b, ridge):
        return fit(moments(a, b, rows, rows, weights)[0], a.shape[1], ridge, components=4)

    sides = span(images), span(captions)
    for side, vectors in zip(sides, (images, captions), strict=True):
        assert side.rows.shape == (count, min(vectors.shape))
    found = whole(model(*(side.rows for side in sides), ridge_in(ridge, *sides)), *sides)
    expected = model(images, captions, ridge)
    np.testing.assert_allclose(found.correlations, expected.correlations, atol=1e-5)
    np.testing.assert_allclose(
        found.encode_images(images) @ found.encode_captions(captions).T,
        expected.encode_images(images) @ expected.encode_captions(captions).T,
        atol=1e-4,
    )


def test_threads_are_limited_within_a_block_alone():
    def threads() -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    with threadpool_limits(2, "blas"):
        with limit_threads():
            assert threads() == {1}
        with limit_threads(None):
            assert threads() == {2}
        assert threads() == {2}
