"""Gradients by rule: of a converged plan through its optimality conditions (`conditions.py`), and
those that are known."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from l2rm_jax.ot import conditions
from l2rm_jax.ot.iteration import Solution, converge, left
from l2rm_jax.ot.problem import Problem


@jax.custom_vjp
def solve(problem: Problem, start, threshold, max_iterations) -> Solution:
    """`converge` with the implicit gradient of the plan; everything else counts as constant.

    Reverse mode only. Takes one dense linear system of the size of the shorter side, in time and
    memory, and nothing of the iterations.
    """
    return converge(problem, start, threshold, max_iterations)


def _forward(problem, start, threshold, max_iterations):
    solution = converge(problem, start, threshold, max_iterations)
    return solution, (problem, solution.plan, solution.potentials)


def _backward(residuals, cotangent):
    problem, plan, potentials = residuals
    weighted = cotangent.plan * plan
    right = weighted.sum(1), weighted.sum(0)
    a_bar, b_bar, mass_bar = conditions.solve(plan, *left(problem, potentials), *right)
    cost_bar = plan * (a_bar[:, None] + b_bar[None, :] + mass_bar) - weighted
    # What remains of a side follows from its weights and the mass.
    zero = jax.tree.map(jnp.zeros_like, problem)
    cotangents = zero._replace(
        cost=cost_bar,
        rows=zero.rows._replace(weights=a_bar),
        columns=zero.columns._replace(weights=b_bar),
        mass=mass_bar,
    )
    return cotangents, None, None, None


solve.defvjp(_forward, _backward)


@jax.custom_jvp
def with_gradient(value: Array, gradient: tuple[Array, ...], arguments: tuple[Array, ...]) -> Array:
    """The value, as a function of the arguments that has this gradient; a scalar."""
    return value


@with_gradient.defjvp
def _change(primals, tangents):
    (value, gradient, _), (*_, changes) = primals, tangents
    return value, sum(jnp.sum(x * dx) for x, dx in zip(gradient, changes, strict=True))
