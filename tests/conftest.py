"""Shared fixtures, and settings that must precede any computation."""

import gc
import importlib
import os

# Most of the suite's time is compilation, so the costly compiler passes are off. Child processes of
# the tests read the environment too.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

from functools import partial
from pathlib import Path

import jax
import pytest

from l2rm_jax.devices.programs import set_compiler_flags

set_compiler_flags()
TESTS = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Simulate several devices, and share compiled programs between tests and workers."""
    devices = "8" if config.option.markexpr == "exhaustive" else "4"
    jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAX_NUM_CPU_DEVICES", devices)))
    if hasattr(config, "cache"):  # pytest's own, which --cache-clear empties
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.cache.mkdir("compiled"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_collection_finish() -> None:
    """Exempt the imported modules from garbage collection, which took a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
    """Free the compiled programs of a module after its tests.

    Thousands of live programs exhaust the memory maps of a process, and the compiler aborts.
    """
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def few_draws():
    """The interval of the rate of mismatch takes few draws: a module that does not look at it."""
    module = importlib.import_module("l2rm_jax.crossfit.judge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "bootstrap_rates", partial(module.bootstrap_rates, draws=2))
        yield


@pytest.fixture(scope="module")
def shared_programs():
    """Runs of this module share what they trace and compile, as `tests/shared_programs.py` says."""
    from tests.shared_programs import shared_programs

    with shared_programs():
        yield


@pytest.fixture(scope="session")
def flickr8k() -> Path:
    """Directory of the real Flickr8k features, `$L2RM_DATA/flickr8k`; skips where it is absent."""
    root = os.environ.get("L2RM_DATA")
    directory = (Path(root) if root else TESTS.parents[1] / "shared" / "data") / "flickr8k"
    if not (directory / "train_ims.npy").is_file():
        pytest.skip(f"real data not found in {directory} (set L2RM_DATA to the parent directory)")
    return directory
