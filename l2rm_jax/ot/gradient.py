"""Custom gradients: the implicit gradient of a converged plan, and gradients known in advance."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from l2rm_jax.ot import conditions
from l2rm_jax.ot.accelerated import converge
from l2rm_jax.ot.log_domain import Solution, kept_weights
from l2rm_jax.ot.problem import Problem


@jax.custom_vjp
def converge_with_gradient(problem: Problem, start, threshold, max_iterations) -> Solution:
    """Run `converge`, with the implicit gradient of the plan (`conditions.py`).

    All other fields of the solution count as constants. Reverse mode only. The backward pass solves
    one dense linear system of the size of the shorter side, and does not depend on the number of
    iterations.
    """
    return converge(problem, start, threshold, max_iterations)


def _forward(problem, start, threshold, max_iterations):
    solution = converge(problem, start, threshold, max_iterations)
    return solution, (problem, solution.plan, solution.potentials)


def _backward(residuals, cotangent):
    problem, plan, potentials = residuals
    weighted = cotangent.plan * plan
    rhs = weighted.sum(1), weighted.sum(0)
    a_bar, b_bar, mass_bar = conditions.solve(plan, *kept_weights(problem, potentials), *rhs)
    cost_bar = plan * (a_bar[:, None] + b_bar[None, :] + mass_bar) - weighted
    # `Side.kept` gets no cotangent: it follows from the weights and the mass, which have their own.
    zero = jax.tree.map(jnp.zeros_like, problem)
    cotangents = zero._replace(
        cost=cost_bar,
        rows=zero.rows._replace(weights=a_bar),
        columns=zero.columns._replace(weights=b_bar),
        mass=mass_bar,
    )
    return cotangents, None, None, None


converge_with_gradient.defvjp(_forward, _backward)


@jax.custom_jvp
def with_gradient(value: Array, gradient: tuple[Array, ...], arguments: tuple[Array, ...]) -> Array:
    """Return the scalar `value`, declared to have `gradient` with respect to `arguments`."""
    return value


@with_gradient.defjvp
def _with_gradient_jvp(primals, tangents):
    (value, gradient, _), (*_, changes) = primals, tangents
    return value, sum(jnp.sum(x * dx) for x, dx in zip(gradient, changes, strict=True))
