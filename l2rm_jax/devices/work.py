"""Count the operations of a program before it is compiled, and measure how fast a CPU does them."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

_SIDE, _TIMES = 1024, 3  # of the square matrices whose product is timed


def count_operations(function: Callable, *inputs: Any) -> float:
    """Count the floating-point operations of the matrix products and convolutions in a function.

    Steps of a loop with a known length all count, those of another loop once. Of the branches of a
    condition, the one with the most operations counts; devices count together.

    Args:
      function: a pure function, which may be mapped over devices.
      *inputs: arguments of it; arrays or their shapes.
    """
    return _operations(jax.make_jaxpr(function)(*inputs).jaxpr)


def _operations(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        inner = [_operations(each) for each in _inner(params)]
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            size = math.prod(shape[axis] for axis in contracted)
            total += 2.0 * size * math.prod(equation.outvars[0].aval.shape)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = kernel[params["dimension_numbers"].rhs_spec[0]]
            total += 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / features
        elif name == "cond":
            total += max(inner, default=0.0)
        elif name == "scan":
            total += params["length"] * sum(inner)
        else:
            devices = params.get("global_axis_size") or _mesh_size(params)
            total += devices * sum(inner)
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the programs within the parameters of an operation."""
    for value in params.values():
        for each in value if isinstance(value, list | tuple) else (value,):
            each = getattr(each, "jaxpr", each)
            if hasattr(each, "eqns"):
                yield each


def _mesh_size(params: dict[str, Any]) -> int:
    """Return the number of devices of a mapped function, 1 for other functions."""
    mesh = params.get("mesh")
    return getattr(mesh, "size", 1) or 1


def operations_per_second() -> float:
    """Measure how many floating-point operations a second a product of matrices does here."""
    rng = np.random.default_rng(0)
    matrix = jax.numpy.asarray(rng.standard_normal((_SIDE, _SIDE), np.float32))
    product = jax.jit(lambda x: x @ x)
    product(matrix).block_until_ready()
    seconds = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        product(matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * _SIDE**3 / min(seconds)
