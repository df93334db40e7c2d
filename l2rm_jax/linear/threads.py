"""Threads of the linear algebra of NumPy and SciPy."""

import contextlib
import functools
from collections.abc import Iterator

import scipy.linalg  # noqa: F401  # loads SciPy's own library, so that it is found
from threadpoolctl import ThreadpoolController


@functools.cache
def _libraries() -> ThreadpoolController:
    """Find the libraries once, as it reads thousands of lines on the memory of the process."""
    return ThreadpoolController()


@contextlib.contextmanager
def limit_threads(threads: int | None = 1) -> Iterator[None]:
    """Limit the threads of matrix products and decompositions in a `with` block or a function.

    Args:
      threads: the most threads that BLAS uses; None changes nothing.
    """
    with _libraries().limit(limits=threads, user_api="blas"):
        yield
