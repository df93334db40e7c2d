"""Count the operations of a program's matrix products, and time such products on this machine."""

import time
from collections.abc import Iterator

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

_SIZE = 1024  # rows of the product that is timed: enough for all cores


def operations_of(program: jax.extend.core.Jaxpr) -> float:
    """Return the floating-point operations of the matrix products of a traced function.

    A loop of known length counts that many times; of the branches of a conditional the largest
    counts. A loop whose length depends on the data counts once. Those loops are the transport and
    the gradients of hardest negatives, which are small beside the rest.
    """
    return sum(map(_operations, program.eqns), 0.0)


def _operations(equation) -> float:
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        factor = equation.invars[0].aval
        length = np.prod([factor.shape[axis] for axis in contracted], dtype=float)
        return 2.0 * equation.outvars[0].aval.size * length
    inner = [operations_of(program) for program in _programs(equation.params)]
    if name == "cond":
        return max(inner)
    return sum(inner) * (equation.params["length"] if name == "scan" else 1)


def _programs(parameters: dict) -> Iterator[jax.extend.core.Jaxpr]:
    """Yield the functions among the parameters of an operation."""
    for leaf in jax.tree.leaves(list(parameters.values())):
        program = getattr(leaf, "jaxpr", leaf)
        if isinstance(program, jax.extend.core.Jaxpr):
            yield program


def operations_per_second() -> float:
    """Time a large product in float32: operations per second, the best of three."""
    matrix = jnp.ones((_SIZE, _SIZE), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return 2 * _SIZE**3 / min(seconds)
