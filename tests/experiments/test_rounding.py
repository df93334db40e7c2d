"""Rounding of factors to bfloat16 on a CPU; in a process of its own, as it cannot be undone."""

import subprocess
import sys

import numpy as np
import pytest

PROGRAM = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from experiments.papers.precision import round_products
from l2rm_jax.devices.parallel import matmul_precision

round_products()
*files, out = sys.argv[1:]
a, b, gradient = map(np.load, files)
for precision in ("float32", "bfloat16"):
    with matmul_precision(precision):
        product, back = jax.vjp(jax.jit(lambda a, b: jnp.einsum("brd,bwd->brw", a, b)), a, b)
        exact = jax.jit(lambda a, b: jnp.matmul(a, b.mT, precision=jax.lax.Precision.HIGHEST))(a, b)
        np.savez(f"{out}/{precision}.npz", product, *back(gradient), exact)
"""


@pytest.mark.slow
def test_factors_are_rounded_forward_and_backward(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 5, 7), "b": (3, 11, 7), "gradient": (3, 5, 11)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    files = [tmp_path / f"{name}.npy" for name in arrays]
    for file, array in zip(files, arrays.values(), strict=True):
        np.save(file, array)

    def products(a, b, gradient):
        forms = ("brd,bwd->brw", a, b), ("brw,bwd->brd", gradient, b), ("brw,brd->bwd", gradient, a)
        return [np.einsum(*form) for form in forms]

    subprocess.run([sys.executable, "-c", PROGRAM, *files, tmp_path], check=True)
    for precision, rounded in (("float32", np.asarray), ("bfloat16", to_bfloat16)):
        found = [*np.load(tmp_path / f"{precision}.npz").values()]
        expected = products(*map(rounded, arrays.values()))
        expected.append(products(**arrays)[0])  # products that name their precision keep it
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Round to 8 significant bits, to the nearest, ties to even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
