"""Arrays of vectors that the user has already: one row per image, one row per caption."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from l2rm_jax.console import progress_bar
from l2rm_jax.data.files import open_array
from l2rm_jax.data.npy_files import still_whole
from l2rm_jax.data.shards import ShardRows
from l2rm_jax.errors import DataError, nearest_flag
from l2rm_jax.importing.pictures import DIGEST_BYTES

_BLOCK_BYTES = 1 << 25
_KINDS = (np.float16, np.float32, np.float64)
Vectors = Float[np.ndarray, "rows ..."] | ShardRows


def open_vectors(path: str | Path, flag: str = "") -> Float[np.ndarray, "rows ..."]:
    """Open an array of vectors, memory-mapped.

    Args:
      path: the file.
      flag: the flag that names it, for a hint; "" for none.

    Raises:
      DataError: it is not a `.npy` file of floats of rank 2 or 3.
    """
    if not Path(path).exists():
        raise DataError(f"{path}: no such file", hint=flag and nearest_flag(flag, path))
    array = open_array(Path(path))
    if array.ndim not in (2, 3) or array.dtype not in _KINDS:
        raise DataError(
            f"{path}: found {array.dtype} {list(array.shape)}, expected float16, float32 or "
            "float64, [rows, dimensions] or [rows, vectors, dimensions]"
        )
    return array


def scan_vectors(
    array: Vectors, name: str, digests: UInt8[np.ndarray, "rows 16"] | None
) -> Bool[np.ndarray, " rows"]:
    """Read all rows once; return which of them are finite.

    Args:
      array: the rows.
      name: name of the array for the progress bar.
      digests: filled with the hash of each row's bytes; None if nobody needs them.
    """
    finite = np.empty(len(array), bool)
    with progress_bar(len(array), f"reading {name}", unit="rows") as bar:
        for rows, block in vector_blocks(array):
            finite[rows] = np.isfinite(block).reshape(len(block), -1).all(axis=1)
            if digests is not None:
                hashes = (hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest() for row in block)
                digests[rows] = np.frombuffer(b"".join(hashes), np.uint8).reshape(len(block), -1)
            bar.update(len(rows))
    return finite


def vector_blocks(
    array: Vectors,
) -> Iterator[tuple[Int[np.ndarray, " block"], Float[np.ndarray, "block ..."]]]:
    """Read an array in blocks of about 32 MB, each with the numbers of its rows."""
    size = max(1, _BLOCK_BYTES // (array.nbytes // len(array)))
    for start in range(0, len(array), size):
        rows = np.arange(start, min(start + size, len(array)))
        yield rows, np.ascontiguousarray(still_whole(array)[rows])
