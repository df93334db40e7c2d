"""Keep the features of pictures in the user's cache directory, for later imports.

Pictures are keyed by the hash of their bytes, encoders by `Encoder.image_key`. Each shard that an
import encodes becomes a file, `encodings/KEY/NAME.npz`. Where there are more than `MOST` bytes,
the files that were not used for the longest time are removed; `rm -r ~/.cache/l2rm_jax/encodings`
clears the cache. Nothing here fails an import: without a directory to write to, nothing is kept.
"""

import contextlib
import functools
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.devices.programs import cache_directory
from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.feature_encoder import Encoder

MOST = 4 * 2**30  # bytes of all files: 45,000 pictures with 36 vectors of 1,280 numbers
_KIND = "encodings of pictures"


class Found(NamedTuple):
    """An encoded picture.

    Attributes:
      features: its features.
      done: conversions of the picture before it was encoded.
    """

    features: np.ndarray
    done: str


class EncodingCache:
    """The features of one encoder that earlier imports have kept.

    Args:
      encoder: the encoder; one without a key has no cache.
    """

    def __init__(self, encoder: Encoder):
        key = encoder.image_key()
        self._directory = cache_directory(f"encodings/{key}") if key else None
        self._places: dict[bytes, tuple[Path, int]] = {}
        files: list[Path] = []
        with contextlib.suppress(OSError):
            files = sorted(self._directory.glob("*.npz")) if self._directory else []
        for file in files:
            for row, digest in enumerate(_read(file, "digest")):
                self._places[digest.tobytes()] = file, row

    def get(self, digest: bytes) -> Found | None:
        """Return the features of a picture with this hash; None if they are not kept."""
        if digest not in self._places:
            return None
        file, row = self._places[digest]
        features, done = self._shard(file)
        return Found(features[row], str(done[row])) if row < len(features) else None

    def keep(self, digest: np.ndarray, features: np.ndarray, done: np.ndarray) -> None:
        """Keep the features of some pictures.

        Args:
          digest: [pictures, 16] hashes of their bytes.
          features: [pictures, ...] their features.
          done: [pictures] their conversions, as text.
        """
        if self._directory is None or not len(digest):
            return
        name = hashlib.blake2b(digest.tobytes(), digest_size=16).hexdigest()
        with contextlib.suppress(OSError):  # a full disk, for example
            arrays = {"digest": digest, "features": features, "done": done}
            replace_arrays(self._directory / f"{name}.npz", arrays)
            _remove_oldest(self._directory.parent)

    @functools.lru_cache(maxsize=4)  # noqa: B019 (of an object that lives as long as an import)
    def _shard(self, file: Path) -> tuple[np.ndarray, np.ndarray]:
        with contextlib.suppress(OSError):
            os.utime(file)  # the last to be removed
        return _read(file, "features"), _read(file, "done")


def _read(file: Path, name: str) -> np.ndarray:
    """Read an array of a file; empty if the file is gone or damaged."""
    try:
        with open_arrays(file, _KIND, "remove it") as arrays:
            return arrays[name]
    except DataError:
        return np.zeros(0)


def _remove_oldest(directory: Path) -> None:
    """Remove the files that were not used for the longest time, down to `MOST` bytes."""
    files = [(file, file.stat()) for file in directory.glob("*/*.npz")]
    size = sum(state.st_size for _, state in files)
    for file, state in sorted(files, key=lambda each: each[1].st_mtime):
        if size <= MOST:
            break
        file.unlink(missing_ok=True)
        size -= state.st_size
