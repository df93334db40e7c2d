"""Shared fixtures; what must precede any computation is set first."""

import os

# Most of the suite's time is compilation: half of it goes without the costly passes. Children
# of the tests read the environment too.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax

jax.config.update("jax_num_cpu_devices", 4)

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
    """Lets go of a module's programs: thousands of live ones exhaust a process's memory maps, and
    the compiler then aborts."""
    yield
    jax.clear_caches()


class Golden(dict):
    """Arrays of a golden file by the keys of golden/README.md."""

    def under(self, prefix: str) -> "Golden":
        """The arrays whose key starts with `prefix`, by the rest of their key."""
        return Golden({k.removeprefix(prefix): x for k, x in self.items() if k.startswith(prefix)})


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    """Function from a file's stem (`"a_encoders"`) to its arrays.

    The environment variable `L2RM_GOLDEN` names another directory of the same layout.
    """
    directory = Path(os.environ.get("L2RM_GOLDEN") or TESTS / "golden")

    def load(name: str) -> Golden:
        path = directory / f"{name}.npz"
        if not path.is_file():
            pytest.fail(f"golden file {path} is missing (the directory is L2RM_GOLDEN if set)")
        with np.load(path, allow_pickle=False) as file:
            return Golden(file)

    return load


@pytest.fixture(scope="session")
def flickr8k() -> Path:
    """Directory of the real Flickr8k features, `$L2RM_DATA/flickr8k`; skips where it is absent."""
    root = os.environ.get("L2RM_DATA")
    directory = (Path(root) if root else TESTS.parents[1] / "shared" / "data") / "flickr8k"
    if not (directory / "train_ims.npy").is_file():
        pytest.skip(f"real data not found in {directory} (set L2RM_DATA to the parent directory)")
    return directory
