"""Hash names, numbers, images and files by content, the same in every process and machine."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Real, UInt64

from l2rm_jax.data.features import Pixels, RegionFeatures

_NUMBERS = 1 << 22  # that are hashed at once


def hash_keys(
    keys: Int[np.ndarray, " keys"] | UInt64[np.ndarray, " keys"] | Sequence[str], seed: int
) -> UInt64[np.ndarray, " keys"]:
    """Hash integers or names to 64 bits, the same in every process and on every machine.

    Integers go through the finaliser of SplitMix64, names through BLAKE2.

    References:
        Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    salt = hashlib.blake2b(str(seed).encode(), digest_size=8).digest()
    array = np.asarray(keys)
    if array.dtype.kind not in "iu":
        digests = (hashlib.blake2b(str(key).encode(), digest_size=8, key=salt) for key in keys)
        return np.frombuffer(b"".join(digest.digest() for digest in digests), np.uint64)
    with np.errstate(over="ignore"):
        z = array.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.frombuffer(salt, np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def hash_rows(rows: Real[np.ndarray, "rows columns"]) -> UInt64[np.ndarray, " rows"]:
    """Hash each row of numbers, read as float32.

    Hashes of (column, bits of its number) are summed per row, and the sum is hashed.
    """
    numbers = np.asarray(rows, np.float32) + np.float32(0)  # -0 is 0
    bits = np.ascontiguousarray(numbers).view(np.uint32).astype(np.uint64)
    columns = np.arange(bits.shape[1], dtype=np.uint64) << np.uint64(32)
    with np.errstate(over="ignore"):
        total = hash_keys((bits | columns).ravel(), 0).reshape(bits.shape).sum(axis=1)
    return hash_keys(total, 1)


def hash_images(images: RegionFeatures | Pixels) -> UInt64[np.ndarray, " images"]:
    """Hash all numbers of each image; reads each once, block by block.

    Raises:
      DataError: a feature is not finite.
    """
    keys = []
    for block in images.blocks():
        rows = images.rows(block).reshape(len(block), -1)
        for part in np.array_split(rows, min(len(rows), -(-rows.size // _NUMBERS))):
            keys.append(hash_rows(part))
    return np.concatenate(keys)


def hash_file(file: Path) -> str:
    """Hash of the content of a file."""
    with file.open("rb") as source:
        return hashlib.file_digest(source, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def is_unchanged(file: Path, hashes: Sequence[str]) -> bool:
    """Return whether a file has the single one of the hashes; not if it cannot be read."""
    try:
        return file.is_file() and [hash_file(file)] == list(hashes)
    except OSError:
        return False
