"""Checks arrays against the shapes that are declared, in every call of a function of `l2rm_jax`.

jaxtyping's import hook calls `check_arrays` on each function, and beartype does the checking. Only
annotations of arrays are read. A NumPy array may stand where a JAX array is declared.
"""

import functools
import inspect
import operator
import types
import typing
from typing import Any

import beartype
import jax
import jaxtyping
import numpy as np

CONTAINERS = (tuple, typing.Union, types.UnionType)


def check_arrays(function: Any) -> Any:
    """The function with its annotations of arrays checked by beartype; itself if it has none."""
    if function.__name__ == "__init__":  # the fields of a dataclass may hold anything as a tree
        return function
    hints = {name: arrays_in(hint) for name, hint in function.__annotations__.items()}
    if inspect.isgeneratorfunction(function):
        hints.pop("return", None)
    hints = {name: hint for name, hint in hints.items() if hint is not Any}
    if not hints:
        return function
    function.__annotations__ = hints
    return beartype.beartype(function)


def arrays_in(hint: Any) -> Any:
    """The arrays of a type, also those in tuples and unions; `Any` for everything else in it."""
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return hint.dtype[jax.Array | np.ndarray, hint.dim_str]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin not in CONTAINERS:
        return hint if hint in (None, type(None), ...) else Any
    parts = tuple(map(arrays_in, parts))
    if origin is tuple:
        return Any if all(part in (Any, ...) for part in parts) else tuple[parts]
    return Any if Any in parts else functools.reduce(operator.or_, parts)
