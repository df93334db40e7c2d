"""Shared fixtures; what must precede any computation is set first."""

import os

# Most of the suite's time is compilation: half of it goes without the costly passes. Children
# of the tests read the environment too.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax

jax.config.update("jax_num_cpu_devices", 4)

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
    """Lets go of a module's programs: thousands of live ones exhaust a process's memory maps, and
    the compiler then aborts."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def flickr8k() -> Path:
    """Directory of the real Flickr8k features, `$L2RM_DATA/flickr8k`; skips where it is absent."""
    root = os.environ.get("L2RM_DATA")
    directory = (Path(root) if root else TESTS.parents[1] / "shared" / "data") / "flickr8k"
    if not (directory / "train_ims.npy").is_file():
        pytest.skip(f"real data not found in {directory} (set L2RM_DATA to the parent directory)")
    return directory
