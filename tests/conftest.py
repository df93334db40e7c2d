"""Shared fixtures, and settings that must precede any computation."""

import functools
import gc
import importlib
import os
import resource
import time

# Most of the suite's time is compilation, so the costly compiler passes are off. Child processes of
# the tests read the environment too. A 0 in the environment turns them on.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Around small matrices, threads of NumPy's linear algebra wait for each other most of the time.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from pathlib import Path

import jax
import jaxtyping
import pytest

from tests.array_types import check_arrays

jaxtyping.install_import_hook("l2rm_jax", f"tests.array_types.{check_arrays.__name__}")
from l2rm_jax.devices.programs import set_compiler_flags

set_compiler_flags()
TESTS = Path(__file__).resolve().parent
MOST_MEMORY_MAPS = 30_000  # Linux allows 65,530 in a process
MOST_SECONDS = 5.0  # CPU time of a test that is not marked, where a sum takes:
SUM_SECONDS, SUMMANDS = 0.055, 5_000_000
BEGAN = pytest.StashKey[float]()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch) -> None:
    """Keep nothing that a test writes into the user's cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def pytest_configure(config: pytest.Config) -> None:
    """Simulate several devices, and share compiled programs between tests and workers."""
    jax.config.update("jax_num_cpu_devices", int(os.environ.get("JAX_NUM_CPU_DEVICES", "4")))
    # Arrays of different ranks or types are brought together by name, never by guess.
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    if hasattr(config, "cache"):  # pytest's own, which --cache-clear empties
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.cache.mkdir("compiled"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@functools.cache
def most_seconds() -> float:
    """The limit on this processor: up to twice as long, if it is slower or shared."""
    began = time.process_time()
    sum(range(SUMMANDS))
    slowness = (time.process_time() - began) / SUM_SECONDS
    return MOST_SECONDS * min(max(slowness, 1.0), 2.0)


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    times = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in times)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    item.stash[BEGAN] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """In continuous integration, fail a test of the default suite that takes too long."""
    report = yield
    is_marked = any(item.get_closest_marker(name) for name in ("slow", "weights"))
    if call.when == "teardown" and report.passed and "CI" in os.environ and not is_marked:
        seconds = cpu_seconds() - item.stash[BEGAN]
        if seconds > (most := most_seconds()):
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid}: {seconds:.1f} s of CPU time, expected at most {most:.1f} s: "
                "use smaller sizes, or mark it `slow`"
            )
    return report


def pytest_collection_finish() -> None:
    """Exempt the imported modules from garbage collection, which took a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
    """Free the compiled programs before they exhaust the memory maps of the process.

    Each live program has some; beyond the limit of the system, the compiler aborts.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MOST_MEMORY_MAPS:
        jax.clear_caches()


@pytest.fixture
def unchecked_arrays():
    """Arrays of wrong shapes reach the function that is to refuse them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def few_draws():
    """The interval of the rate of mismatch takes few draws: a module that does not look at it."""
    module = importlib.import_module("l2rm_jax.judging.rate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_DRAWS", 20)
        yield


@pytest.fixture(scope="module")
def judged_once():
    """Audits of the same pairs with the same settings in this module judge them once."""
    module = importlib.import_module("l2rm_jax.audit.command")
    judge, judged = module.judge_pairs, {}

    def judge_pairs(pairs, detector, *, rows=None, executor=None, **settings):
        key = pairs.fingerprint, detector, *settings.items()
        if key not in judged:
            judged[key] = judge(pairs, detector, rows=rows, executor=executor, **settings)
        return judged[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "judge_pairs", judge_pairs)
        yield


@pytest.fixture(scope="module")
def shared_programs():
    """Runs of this module share compiled programs, as `tests/shared_programs.py` says."""
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
