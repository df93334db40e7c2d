"""RCSL's embedding model on images with different numbers of regions."""

import jax
import numpy as np
import pytest

from l2rm_jax.models.aggregate import AggregatedImageEncoder

COUNTS = np.array([2, 1, 3, 3], np.int32)
REGIONS, FEATURES, SIZE = 3, 5, 8
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(len(COUNTS), REGIONS, FEATURES)).astype(np.float32)
MODEL = AggregatedImageEncoder(SIZE)


def padded(width: int, content: float) -> np.ndarray:
    wide = np.full((len(COUNTS), width, FEATURES), content, np.float32)
    for row, image, count in zip(wide, IMAGES, COUNTS, strict=True):
        row[:count] = image[:count]
    return wide


@jax.jit
def run(variables, images):
    """Training-mode embeddings, new running statistics, and gradients of a sum over outputs."""

    def loss(params):
        state = {**variables, "params": params}
        code, updated = MODEL.apply(state, images, COUNTS, True, mutable=["batch_stats"])
        return (code.overall**3).sum(), (code.overall, updated["batch_stats"]["norm"])

    gradients, (overall, statistics) = jax.grad(loss, has_aux=True)(variables["params"])
    return overall, statistics, gradients


@pytest.fixture(scope="module")
def variables() -> dict:
    shapes = jax.eval_shape(lambda key: MODEL.init(key, IMAGES, COUNTS, False), jax.random.key(0))
    return jax.tree.map(lambda x: RNG.uniform(0.1, 1, x.shape).astype(np.float32), shapes)


@pytest.mark.parametrize(("width", "content"), [(REGIONS, np.nan), (REGIONS + 2, 1e3)])
def test_padding_changes_nothing(variables, width, content):
    expected, ours = run(variables, padded(REGIONS, 0.0)), run(variables, padded(width, content))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), ours, expected
    )


def test_batch_normalisation_ignores_padding(variables):
    regions = np.concatenate([image[:n] for image, n in zip(IMAGES, COUNTS, strict=True)])
    layer, before = variables["params"]["hidden"], variables["batch_stats"]["norm"]
    hidden = regions @ layer["kernel"] + layer["bias"]
    overall, after, _ = run(variables, padded(REGIONS, np.nan))
    for name, new in (("mean", hidden.mean(0)), ("var", hidden.var(0, ddof=1))):
        expected = 0.9 * before[name] + 0.1 * new
        np.testing.assert_allclose(after[name], expected, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(overall, axis=1), 1, rtol=1e-5)
