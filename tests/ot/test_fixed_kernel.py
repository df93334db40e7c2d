"""A few kernel iterations equal those of mode "fixed", which are in the log domain."""

import numpy as np
import pytest

from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.ot.fixed_kernel import fixed_plan


@pytest.mark.parametrize("mass", [0.3, 1.0])
@pytest.mark.parametrize("iterations", [1, 20])
def test_the_plan_equals_mode_fixed(mass, iterations):
    rng = np.random.default_rng(0)
    log_kernel = (3 * rng.standard_normal((20, 30))).astype(np.float32)
    a, b = (rng.random(size).astype(np.float32) for size in log_kernel.shape)
    a[3] = b[4] = 0
    a, b = a / a.sum(), b / b.sum()
    found = fixed_plan(log_kernel, mass, a, b, iterations)
    expected = partial_sinkhorn(
        -log_kernel, mass, epsilon=1.0, a=a, b=b, mode="fixed", max_iterations=iterations
    )
    np.testing.assert_allclose(found, expected.plan, atol=1e-6)
    np.testing.assert_allclose(found.sum(), mass, rtol=1e-5)
    assert found[3].max() < 1e-20 and found[:, 4].max() < 1e-20
