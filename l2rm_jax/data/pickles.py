"""Read Python pickles of arrays and plain containers without running any code in them."""

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.errors import DataError, first_line

# Functions that NumPy's pickles name: for an array, for a scalar, for an array in protocol 5.
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_SCALAR = np.float64(0).__reduce__()[0]
_FROM_BUFFER = np.zeros(0).__reduce_ex__(5)[0]


def _latin1(text: str, encoding: str) -> bytes:
    """Encode latin1 text, as pickled Python 2 byte strings need; refuse every other codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as {encoding}, expected latin1")
    return text.encode(encoding)


# The only globals that a pickle may name. NumPy 2 moved its own from numpy.core to numpy._core.
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
    """Read a pickle of arrays, numbers, strings and plain containers.

    Strings written by Python 2 are read as latin1, which NumPy arrays pickled by it need.

    Raises:
      DataError: the file is missing or damaged, or names any other class or function, which is
        neither imported nor called.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as file:
        try:
            return _Unpickler(file, encoding="latin1").load()
        except Exception as error:  # unpickling damaged bytes can raise anything
            raise DataError(
                f"{path}: cannot be read ({first_line(error)}), expected a pickle of arrays, "
                "numbers, strings and plain containers"
            ) from error


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler: the one in C allocates a memo of any size that a file asks for."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is never loaded; convert the file to .npz"
            ) from None
