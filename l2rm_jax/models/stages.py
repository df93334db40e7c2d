"""A score in stages: the backward pass finds what they handed on, and computes the rest again."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from l2rm_jax.models.encoders import ImageCode, TextCode


def composed(stages: Sequence[Callable]) -> Callable:
    """`score(params, images, texts)`, one stage after the other.

    The first stage takes these three, each later one also what the stage before has made: arrays
    whose size may follow the captions' width where the words come last along an axis.
    """
    return lambda *inputs: _run(stages, inputs)[-1]


def handed_on(stages: Sequence[Callable], *inputs: Any) -> list:
    """Shapes of what each stage but the last makes of `(params, images, texts)`."""
    return jax.eval_shape(lambda *inputs: _run(stages, inputs)[:-1], *inputs)


def bytes_of(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def at_least_width(stages: Sequence[Callable], sizes: Sequence[int]) -> Callable:
    """`score(params, images, texts)` of `stages`, computed at the smallest of `sizes` that holds
    the texts; the largest holds all.

    For the backward pass it keeps the inputs and what the stages hand on, at full width. That pass
    takes the branch of the forward pass: derived from a switch, it would store what the branches
    not taken need too. A product whose result is handed on is not computed again.
    """

    def chosen(texts: TextCode) -> Int[Array, ""]:
        longest = jnp.sum(texts.mask, axis=1).max()
        return jnp.searchsorted(jnp.array(sizes), longest)

    parts = {size: [at_width(stage, size) for stage in stages] for size in sizes}

    def forward(like: list, size: int, *inputs):
        *kept, scores = _run(parts[size], inputs)
        return scores, _resized(kept, like)

    def backward(size: int, inputs, kept, slopes):
        before = [(), *((x,) for x in _resized(kept, handed_on(parts[size], *inputs)))]
        sums = jax.tree.map(jnp.zeros_like, inputs)
        for stage, given in zip(reversed(parts[size]), reversed(before), strict=True):
            _, pull = jax.vjp(stage, *inputs, *given)
            slopes = pull(slopes)
            sums = jax.tree.map(jnp.add, sums, slopes[:3])
            slopes = slopes[-1]  # of what the stage before has made; the first has none before it
        return sums

    def switch(function: Callable, texts: TextCode, *operands):
        return jax.lax.switch(chosen(texts), [partial(function, s) for s in sizes], *operands)

    @jax.custom_vjp
    def score(*inputs):
        return switch(lambda size, *inputs: _run(parts[size], inputs)[-1], inputs[2], *inputs)

    def keeping(*inputs):
        like = handed_on(parts[sizes[-1]], *inputs)
        scores, kept = switch(partial(forward, like), inputs[2], *inputs)
        return scores, (inputs, kept)

    def back(residuals, slopes):
        # XLA would find again what it has computed before, and store it all from there to here.
        (inputs, kept), slopes = jax.lax.optimization_barrier((residuals, slopes))
        return switch(backward, inputs[2], inputs, kept, slopes)

    score.defvjp(keeping, back)
    return score


def at_width(stage: Callable, size: int) -> Callable:
    """`stage(params, images, texts, ...)` of the first `size` words, without gradients of the
    masks, which would be computed and not used."""

    def without_slope(code: ImageCode | TextCode) -> ImageCode | TextCode:
        return code.replace(mask=jax.lax.stop_gradient(code.mask))

    return lambda params, images, texts, *before: stage(
        params, without_slope(images), without_slope(texts.cut(size)), *before
    )


def _run(stages: Sequence[Callable], inputs: Sequence) -> list:
    """What each stage makes."""
    made = []
    for stage in stages:
        made.append(stage(*inputs, *made[-1:]))
    return made


def _resized(arrays: Any, like: Any) -> Any:
    """Cut, or padded with zeros, at the end of each axis."""

    def resize(x: Array, like: jax.ShapeDtypeStruct) -> Array:
        x = x[tuple(map(slice, like.shape))]
        return jnp.pad(x, [(0, n - m) for m, n in zip(x.shape, like.shape, strict=True)])

    return jax.tree.map(resize, arrays, like)
