"""Compiled programs: compilation in a separate thread, compiler flags, and the disk cache."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
from jaxlib import utils

from l2rm_jax.devices.memory import keep_freed_memory, release_free_memory

_log = logging.getLogger(__name__)

FUSION_EMITTERS = "--xla_cpu_use_fusion_emitters"
OPTIMISATION_LEVEL = "--xla_backend_optimization_level"
LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"  # of a compilation that is kept


class Program:
    """A function of `jax.jit` or `jax.pmap` that is compiled outside the calling thread.

    XLA blocks signals in the thread that compiles, for minutes if the model is large.
    """

    def __init__(self, function: Callable):
        self.function = function
        self._compiled: set = set()
        self._ahead: dict[tuple, Future] = {}  # running compilations, by shapes of the inputs

    def __call__(self, *inputs: Any) -> Any:
        self.compile(*inputs)
        return self.function(*inputs)

    def is_compiled(self, *inputs: Any) -> bool:
        """Whether the function is compiled for inputs of these shapes and types."""
        return _shapes(inputs) in self._compiled

    def compile(self, *inputs: Any, wait: Callable[[Future], Any] = Future.result) -> None:
        """Compile the function for inputs of these shapes and types, if it is not compiled yet.

        Args:
          *inputs: arguments of the function.
          wait: waits for the future of the compilation and returns its result; it may raise
            instead, to stop waiting at a signal.
        """
        if self.is_compiled(*inputs):
            return
        self.compile_ahead(*inputs)
        # JAX caches the result, so a later call compiles nothing.
        compiled = wait(self._ahead.pop(_shapes(inputs)))
        # Return the memory that the compiler has freed.
        release_free_memory(_working_memory(compiled))
        self._compiled.add(_shapes(inputs))

    def compile_ahead(self, *inputs: Any) -> None:
        """Start to compile the function in the background; `compile` then waits for the result.

        Args:
          *inputs: arguments of the function. They are traced in this thread, where JAX's
            thread-local settings, such as the matmul precision, take effect.
        """
        key = _shapes(inputs)
        if key not in self._ahead and key not in self._compiled:
            self._ahead[key] = _run_in_thread(self.function.lower(*inputs).compile)


def _working_memory(compiled: jax.stages.Compiled) -> int:
    """Bytes of host memory of a call, without its inputs and results; 0 on accelerators."""
    devices = [device for device in jax.local_devices() if device.platform == "cpu"]
    analysis = compiled.memory_analysis() if devices else None
    return len(devices) * analysis.temp_size_in_bytes if analysis else 0


def _shapes(inputs: Any) -> tuple:
    leaves, structure = jax.tree.flatten(inputs)
    return structure, tuple((x.shape, x.dtype) for x in leaves)


def _run_in_thread(function: Callable[[], Any]) -> Future:
    """Run a function in a daemon thread, which does not block the exit of the process."""
    done: Future = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def prepare_process() -> None:
    """Set up memory, types, the compiler and the program cache, before any device is used."""
    if jax.config.jax_enable_x64:
        _log.info("JAX_ENABLE_X64 is set for other work, and ignored: l2rm computes in float32")
        jax.config.update("jax_enable_x64", False)
    keep_freed_memory()
    silence_compiler()
    set_compiler_flags()
    keep_compiled_programs()


def silence_compiler() -> None:
    """Hide what XLA's C++ code logs, such as its advice to file a bug about a slow compilation.

    Whatever stops a program is raised in Python too. TF_CPP_MIN_LOG_LEVEL=0 or 2 shows the lines; 1
    is the default that JAX sets itself when it is imported.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # for plug-ins and workers, which are loaded later
        utils.absl_set_min_log_level(3)


def keep_compiled_programs() -> None:
    """Cache compiled programs in the user's cache directory, unless a cache is configured.

    JAX_COMPILATION_CACHE_DIR sets another directory. A damaged entry causes a warning and is
    compiled again. Without a home directory, or one that this user may write to, nothing is kept.
    Many small programs, which JAX does not keep by default, take seconds of each start.
    """
    if LEAST_SECONDS.upper() not in os.environ:
        jax.config.update(LEAST_SECONDS, 0.05)
    if jax.config.jax_compilation_cache_dir is not None:
        return
    if (directory := cache_directory("compiled")) is not None:
        jax.config.update("jax_compilation_cache_dir", str(directory))


def cache_directory(name: str) -> Path | None:
    """Return a directory in the user's cache directory, `$XDG_CACHE_HOME` or `~/.cache`.

    Returns:
      The directory, which is made if missing; None without a home directory, or if this user may
      not write to it.
    """
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home directory
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(caches, "l2rm_jax", name)
        directory.mkdir(parents=True, exist_ok=True)
        return directory if os.access(directory, os.W_OK) else None
    return None


def set_compiler_flags() -> None:
    """Add flags to XLA_FLAGS that speed up a CPU, if the CPU is the only device.

    XLA reads the flags when a device is first used, so this must be called before. They would
    change the compiler of an accelerator too, or make it abort if it does not know them.

    - Without the fusion emitters, the default of jaxlib 0.10, steps are up to 1.5 times as fast.
      XLA of jaxlib 0.11 and 0.12 aborts at this flag.
    - With a lower LLVM optimisation level, steps take as long, and compile in 0.7 to 0.8 of the
      time.

    Flags that XLA_FLAGS has already are kept; nothing changes if it names a file of flags.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if (flags and not flags.startswith("-")) or not is_cpu_only():
        return
    if version("jaxlib").startswith("0.10.") and FUSION_EMITTERS not in flags:
        flags += f" {FUSION_EMITTERS}=false"
    if OPTIMISATION_LEVEL not in flags:
        flags += f" {OPTIMISATION_LEVEL}=1"
    os.environ["XLA_FLAGS"] = flags.strip()


def is_cpu_only() -> bool:
    """Whether the CPU is the only device that JAX can find, judged before JAX looks for devices.

    It is if JAX_PLATFORMS is set to the CPU, or if no plug-in for an accelerator is installed.
    """
    if jax.config.jax_platforms:
        return jax.config.jax_platforms == "cpu"
    named = any(name in os.environ for name in ("PJRT_NAMES_AND_LIBRARY_PATHS", "TPU_LIBRARY_PATH"))
    plugins = entry_points(group="jax_plugins") or find_spec("jax_plugins")
    return not (named or plugins or find_spec("libtpu"))
