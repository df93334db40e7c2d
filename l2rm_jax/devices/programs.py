"""Compiled programs: how they are made, in threads of their own, and kept for the next run."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from l2rm_jax.devices.memory import keep_freed_memory, release_free_memory

CODE_GENERATOR = "--xla_cpu_use_fusion_emitters"
OPTIMISATION = "--xla_backend_optimization_level"


class Program:
    """A function of `jax.jit` or `jax.pmap`, each of its forms compiled in a thread of its own.

    XLA keeps the thread that compiles from noticing signals, for minutes where the model is large.
    """

    def __init__(self, function: Callable):
        self.function = function
        self._compiled: set = set()

    def __call__(self, *inputs: Any) -> Any:
        self.compile(*inputs)
        return self.function(*inputs)

    def is_compiled(self, *inputs: Any) -> bool:
        """Whether inputs of these shapes have been seen."""
        return _shapes(inputs) in self._compiled

    def compile(self, *inputs: Any, wait: Callable[[Future], Any] = Future.result) -> None:
        """Compiles for inputs of these shapes, unless that is done; a signal may end the wait.

        `wait` returns what the future holds when it is done.
        """
        if self.is_compiled(*inputs):
            return
        # A call finds what was lowered here and compiles nothing. Settings of JAX that belong to
        # this thread, such as the precision of products, count while it lowers.
        compiled = wait(_in_thread(self.function.lower(*inputs).compile))
        release_free_memory(
            _working_memory(compiled)
        )  # the compiler frees as much as a step may take
        self._compiled.add(_shapes(inputs))


def _working_memory(compiled: jax.stages.Compiled) -> int:
    """Bytes of this host's memory that one call works with, beside its inputs and results."""
    devices = [device for device in jax.local_devices() if device.platform == "cpu"]
    found = compiled.memory_analysis() if devices else None
    return len(devices) * found.temp_size_in_bytes if found else 0


def _shapes(inputs: Any) -> tuple:
    leaves, structure = jax.tree.flatten(inputs)
    return structure, tuple((x.shape, x.dtype) for x in leaves)


def _in_thread(function: Callable[[], Any]) -> Future:
    """What the function returns; who waits for it no longer leaves the thread to itself."""
    done: Future = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def prepare_process() -> None:
    """What a command sets for its whole process, before it touches a device."""
    keep_freed_memory()
    set_compiler_flags()
    keep_compiled_programs()


def keep_compiled_programs() -> None:
    """Keeps what is compiled for the next run, in the user's cache; JAX_COMPILATION_CACHE_DIR wins.

    A damaged entry costs a warning and a compilation.
    """
    if jax.config.jax_compilation_cache_dir is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(caches, "l2rm_jax", "compiled")))


def set_compiler_flags() -> None:
    """Adds to XLA_FLAGS what suits a CPU, where it is the only device; before it is touched, as XLA
    reads them then. An accelerator's compiler would obey these flags too, or abort at one that it
    does not know.

    jaxlib 0.10 gets XLA's former generator of a CPU's kernels: with the other one, its default, a
    step takes up to 1.5 times as long. XLA of 0.11 and 0.12 aborts at this flag.

    LLVM optimises less than it could: steps take as long, and compile in 0.7 to 0.8 of the time.

    What XLA_FLAGS names already stays, and so does a file that it names instead of flags.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if (flags and not flags.startswith("-")) or not is_cpu_only():
        return
    if version("jaxlib").startswith("0.10.") and CODE_GENERATOR not in flags:
        flags += f" {CODE_GENERATOR}=false"
    if OPTIMISATION not in flags:
        flags += f" {OPTIMISATION}=1"
    os.environ["XLA_FLAGS"] = flags.strip()


def is_cpu_only() -> bool:
    """Whether JAX can find no device but the CPU, as far as this is known before it looks: it has
    been told so (JAX_PLATFORMS), or nothing is installed that finds another."""
    if jax.config.jax_platforms:
        return jax.config.jax_platforms == "cpu"
    named = any(name in os.environ for name in ("PJRT_NAMES_AND_LIBRARY_PATHS", "TPU_LIBRARY_PATH"))
    plugins = entry_points(group="jax_plugins") or find_spec("jax_plugins")
    return not (named or plugins or find_spec("libtpu"))
