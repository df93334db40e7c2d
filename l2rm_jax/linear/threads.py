"""Threads of the linear algebra of NumPy and SciPy."""

import functools
from contextlib import AbstractContextManager

import scipy.linalg  # noqa: F401  # loads SciPy's own library, so that it is found
from threadpoolctl import ThreadpoolController


@functools.cache
def _libraries() -> ThreadpoolController:
    """Find the libraries once, as it reads thousands of lines on the memory of the process."""
    return ThreadpoolController()


def limit_threads(threads: int | None = 1) -> AbstractContextManager:
    """Limit the threads of matrix products and decompositions within a `with` block.

    Args:
      threads: the most threads that BLAS uses; None changes nothing.
    """
    return _libraries().limit(limits=threads, user_api="blas")
