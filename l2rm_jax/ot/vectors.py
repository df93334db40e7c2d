"""Partial transport between vectors, without a matrix of costs.

The iterations of `log_domain.py` are accelerated by Anderson's method. Each half recomputes the
costs, one block of rows after another, and keeps only a sum per row or column. So memory grows with
n + m, and an iteration takes twice the work of computing all costs.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int

from l2rm_jax.ot import anderson
from l2rm_jax.ot.log_domain import update_potentials
from l2rm_jax.ot.problem import Side, make_side
from l2rm_jax.ot.sums import vector_total

_BLOCK_ENTRIES = 2**22  # costs computed at a time: 16 MiB
_BLOCK_SHARE = 1 / 128  # of an accelerator's memory, for the costs computed at a time
_MAX_STEP = 10.0  # of an extrapolation, in units of epsilon

Cost = Callable[[Array, Array], Array]


def product_distance(
    images: Float[Array, "n d"], captions: Float[Array, "m d"]
) -> Float[Array, "n m"]:
    """One minus the inner product: for unit vectors, one minus the cosine."""
    return 1.0 - jnp.matmul(images, captions.T, precision=lax.Precision.HIGHEST)


class _Vectors(NamedTuple):
    images: Float[Array, "n d"]
    captions: Float[Array, "m d"]
    own: Int[Array, " m"]  # row that each column may not go to; -1: none
    epsilon: Float[Array, ""]


class PlanOfVectors(NamedTuple):
    """A plan, given by vectors and the logs of two scalings, with diagnostics.

    The plan is exp(log_rows_i + log_columns_j - cost_ij / epsilon). The methods compute it block by
    block.
    """

    vectors: _Vectors
    cost: Cost
    log_rows: Float[Array, " n"]  # -inf for a row that cannot move
    log_columns: Float[Array, " m"]
    rows_moved: Float[Array, " n"]  # weight that each row moves, up to the error
    columns_moved: Float[Array, " m"]
    iterations: Int[Array, ""]
    converged: Bool[Array, ""]  # the error is within the threshold and the mass is possible
    error: Float[Array, ""]  # L1 error of marginals and mass, as a share of the mass

    def leading(
        self, top: int, scale: Float[Array, " m"] | None = None
    ) -> tuple[Int[Array, "n top"], Float[Array, "n top"]]:
        """Columns and values of each row's largest entries, largest first.

        Args:
            top: entries per row, at most the number of columns.
            scale: factor of each column, >= 0; 1 by default.
        """
        log_columns = self.log_columns
        if scale is not None:
            log_columns = log_columns + jnp.log(jnp.asarray(scale, log_columns.dtype))
        return _leading(self.cost, top, self.vectors, self.log_rows, log_columns)

    def times(self, matrix: Float[Array, "m k"]) -> Float[Array, "n k"]:
        """Product of the plan and a matrix."""
        matrix = jnp.asarray(matrix, self.log_rows.dtype)
        return _times(self.cost, self.vectors, self.log_rows, self.log_columns, matrix)


def partial_sinkhorn_of(
    images: Float[Array, "n d"],
    captions: Float[Array, "m d"],
    mass: float | Float[Array, ""],
    *,
    epsilon: float | Float[Array, ""],
    cost: Cost = product_distance,
    a: Float[Array, " n"] | None = None,
    b: Float[Array, " m"] | None = None,
    own: Int[Array, " m"] | None = None,
    threshold: float = 1e-3,
    max_iterations: int = 200,
) -> PlanOfVectors:
    """Move ``mass`` between vectors at the least entropic cost; no n x m array is ever held.

    It solves the problem of `partial_sinkhorn`, in mode "converged", with ``cost(images,
    captions)`` as its matrix. If that matrix fits into memory, `partial_sinkhorn` is several times
    faster, because it computes the costs once. There are no Newton steps here: with much mass at a
    small epsilon, this function needs more iterations, or does not converge (see ``converged``).
    Not differentiable.

    Args:
        images: vectors of the rows.
        captions: vectors of the columns.
        mass: mass to move, in [0, min(|a|, |b|)]; otherwise nothing converges.
        epsilon: strength of the entropy, > 0, in units of the cost.
        cost: function of a block of rows of ``images``, and of ``captions``, that returns the
            block's costs; finite. Programs are compiled for it, so pass the same function again.
        a: weights of the rows, >= 0; 1 / n by default.
        b: weights of the columns, >= 0; 1 / m by default.
        own: for each column, the row that it may not go to, or -1; -1 by default.
        threshold: L1 error of the marginals and the mass, as a share of the mass.
        max_iterations: at least 1.

    Returns:
        The plan, which its methods `leading` and `times` read.

    Raises:
        ValueError: if shapes do not fit together, or ``max_iterations`` is less than 1.
    """
    images, captions = (jnp.asarray(x, jnp.float32) for x in (images, captions))
    n, m = len(images), len(captions)
    a = np.full(n, 1 / n, np.float32) if a is None else a
    b = np.full(m, 1 / m, np.float32) if b is None else b
    own = np.full(m, -1, np.int32) if own is None else own
    _check(images, captions, a, b, own, max_iterations)
    a, b, epsilon, mass = (jnp.asarray(x, jnp.float32) for x in (a, b, epsilon, mass))
    vectors = _Vectors(images, captions, jnp.asarray(own, jnp.int32), epsilon)
    fields = _solve(cost, vectors, mass, a, b, jnp.float32(threshold), jnp.int32(max_iterations))
    return PlanOfVectors(vectors, cost, *fields)


def _check(images, captions, a, b, own, max_iterations) -> None:
    n, m = len(images), len(captions)
    if images.ndim != 2 or captions.ndim != 2 or not n or not m:
        raise ValueError(
            f"images, captions: found shapes {images.shape} and {captions.shape}, expected "
            "non-empty matrices"
        )
    for name, array, size in (("a", a, n), ("b", b, m), ("own", own, m)):
        if jnp.shape(array) != (size,):
            raise ValueError(f"{name}: found shape {jnp.shape(array)}, expected {(size,)}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations: found {max_iterations}, expected at least 1")


class _State(NamedTuple):
    g: Float[Array, " m"]  # the next iteration starts from it
    out: Float[Array, " m"]  # the last iteration ended with it
    f: Float[Array, " n"]
    rows_moved: Float[Array, " n"]
    columns_moved: Float[Array, " m"]
    memory: anderson.Memory
    error: Float[Array, ""]
    iterations: Int[Array, ""]


@partial(jax.jit, static_argnums=0)
def _solve(cost, vectors: _Vectors, mass, a, b, threshold, max_iterations):
    is_possible = (mass > 0) & (mass <= jnp.minimum(a.sum(), b.sum()) * (1 + 1e-6))
    in_range = (vectors.epsilon > 0) & (a >= 0).all() & (b >= 0).all()
    unit = jnp.where(is_possible, mass, 1.0)
    one = jnp.ones_like(unit)
    # An item whose every pair is forbidden keeps its weight.
    has_own = vectors.own >= 0
    forbidden = jnp.bincount(jnp.where(has_own & (b > 0), vectors.own, len(a)), length=len(a))
    a = jnp.where(forbidden < (b > 0).sum(), a, 0.0)
    allowed = (a > 0).sum() - (has_own & (a[vectors.own] > 0)).astype(jnp.int32)
    b = jnp.where(allowed > 0, b, 0.0)
    rows, columns = make_side(a / unit, one), make_side(b / unit, one)

    def update(log_sums, side: Side):
        can_move = side.weights > 0
        log_sums = jnp.where(can_move, log_sums, 0.0)
        potentials, _, moved = update_potentials(log_sums, side, one)
        return jnp.where(can_move, potentials, -jnp.inf), moved

    def iterate(state: _State) -> _State:
        f, rows_moved = update(_row_sums(cost, vectors, state.g), rows)
        g, columns_moved = update(_column_sums(cost, vectors, f), columns)
        # Before the columns' half, the rows are exact and the columns are off by this factor.
        change = jnp.where(columns.weights > 0, g - state.g, 0.0)
        off = jnp.abs(vector_total(rows_moved) - 1) + jnp.abs(vector_total(columns_moved) - 1)
        error = off + jnp.sum(columns_moved * jnp.abs(jnp.expm1(-change)))
        residual = change * jnp.sqrt(jnp.minimum(columns.weights, 1.0))
        since = jnp.where(columns.weights > 0, g - state.out, 0.0)
        memory, step = anderson.extrapolate(state.memory, residual, since, error)
        step = jnp.clip(jnp.nan_to_num(step), -_MAX_STEP, _MAX_STEP)
        moved = rows_moved, columns_moved
        count = state.iterations + 1
        return _State(g + step, g, f, *moved, memory, error, count)

    def is_unfinished(state: _State):
        return (state.error > threshold) & (state.iterations < max_iterations)

    g = jnp.where(columns.weights > 0, jnp.log(jnp.maximum(columns.weights, 1e-30)), -jnp.inf)
    moved, memory = (rows.weights, columns.weights), anderson.empty_memory(jnp.zeros_like(g))
    first = _State(g, g, jnp.zeros_like(a), *moved, memory, one + jnp.inf, jnp.int32(0))
    # After an iteration the potentials of `out` belong to the plan; rows are off by the error.
    end = lax.while_loop(is_unfinished, iterate, first)
    moved = unit * end.rows_moved, unit * end.columns_moved
    converged = (end.error <= threshold) & is_possible & in_range
    return end.f + jnp.log(unit), end.out, *moved, end.iterations, converged, end.error


def _block_entries() -> int:
    """Costs computed at a time: few on a CPU with its small caches, many on an accelerator."""
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return max(_BLOCK_ENTRIES, int(_BLOCK_SHARE * memory) // 4)


def _blocks(cost: Cost, vectors: _Vectors, *per_row: Array):
    """Split rows into blocks, and a function that makes a block's -cost / epsilon.

    The last block is filled up with zeros; nothing moves along the values of `per_row` there, which
    are filled up with -inf.
    """
    n, m = len(vectors.images), len(vectors.captions)
    rows = max(1, min(n, _block_entries() // m))
    fill = -n % rows

    def split(x, value):
        x = jnp.pad(x, ((0, fill), *[(0, 0)] * (x.ndim - 1)), constant_values=value)
        return x.reshape(-1, rows, *x.shape[1:])

    def exponents(images, index):
        scaled = -cost(images, vectors.captions) / vectors.epsilon
        return jnp.where(index[:, None] == vectors.own[None, :], -jnp.inf, scaled)

    index = split(jnp.arange(n, dtype=jnp.int32), n)
    return exponents, (split(vectors.images, 0.0), index, *(split(x, -jnp.inf) for x in per_row))


def _map_rows(cost: Cost, vectors: _Vectors, function: Callable, *per_row: Array):
    """Map `function(exponents, *per_row)` over blocks of rows; results have an entry per row."""
    exponents, blocks = _blocks(cost, vectors, *per_row)
    results = lax.map(lambda block: function(exponents(*block[:2]), *block[2:]), blocks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: len(vectors.images)], results)


def _row_sums(cost, vectors, g) -> Float[Array, " n"]:
    """Log of each row's sum of exp(g - cost / epsilon)."""
    return _map_rows(cost, vectors, lambda x: logsumexp(x + g[None, :], axis=1))


def _column_sums(cost, vectors, f) -> Float[Array, " m"]:
    """Log of each column's sum of exp(f - cost / epsilon)."""
    exponents, blocks = _blocks(cost, vectors, f)

    def add(total, block):
        *made_of, f = block
        return jnp.logaddexp(total, logsumexp(exponents(*made_of) + f[:, None], axis=0)), None

    return lax.scan(add, jnp.full_like(vectors.captions[:, 0], -jnp.inf), blocks)[0]


@partial(jax.jit, static_argnums=(0, 1))
def _leading(cost, top, vectors, log_rows, log_columns):
    def largest(x, log_row):
        values, columns = lax.top_k(x + log_row[:, None] + log_columns[None, :], top)
        return columns, jnp.exp(values)

    return _map_rows(cost, vectors, largest, log_rows)


@partial(jax.jit, static_argnums=0)
def _times(cost, vectors, log_rows, log_columns, matrix):
    def product(x, log_row):
        plan = jnp.exp(x + log_row[:, None] + log_columns[None, :])
        return jnp.matmul(plan, matrix, precision=lax.Precision.HIGHEST)

    return _map_rows(cost, vectors, product, log_rows)
