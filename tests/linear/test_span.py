"""A model fitted to few vectors equals the model fitted to their coordinates in their span."""

import numpy as np
import pytest

from l2rm_jax.linear.cca import Ridge, fit, moments
from l2rm_jax.linear.span import ridge_in, span, whole


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
