"""Python pickles of arrays and plain containers, read without running anything in them."""

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.errors import DataError

# What NumPy itself names when it pickles an array, a number, and an array by protocol 5.
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_SCALAR = np.float64(0).__reduce__()[0]
_FROM_BUFFER = np.zeros(0).__reduce_ex__(5)[0]


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 2's strings of bytes come back; no other codec is looked up."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as {encoding}, expected latin1")
    return text.encode(encoding)


# Every global that a pickle may name. NumPy 2 moved its own from numpy.core to numpy._core.
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): collections.OrderedDict,
    **{
        (f"numpy.{core}.{name}", function.__name__): function
        for core in ("core", "_core")
        for name, function in (
            ("multiarray", _RECONSTRUCT),
            ("multiarray", _SCALAR),
            ("numeric", _FROM_BUFFER),
        )
    },
}


def read_pickle(path: Path) -> Any:
    """What a pickle of arrays, numbers, strings and plain containers holds.

    Strings of Python 2 are read as latin1, which NumPy's own arrays of that time need.

    Raises:
      DataError: no such file, a damaged one, or one that names any other class or function; that
        one is neither imported nor called.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as file:
        try:
            return _Unpickler(file, encoding="latin1").load()
        except Exception as error:  # bytes that are no pickle may end in any of them
            raise DataError(f"{path}: cannot be read as a pickle of arrays ({error})") from error


class _Unpickler(pickle._Unpickler):
    """Python's own form: the one in C takes memory for a memo of any size that a byte asks for."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is never loaded; convert the file to .npz"
            ) from None
