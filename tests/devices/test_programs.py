"""Programs are compiled once, in threads of their own, with flags that suit the devices."""

import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.devices import programs
from l2rm_jax.devices.programs import (
    Program,
    is_cpu_only,
    set_compiler_flags,
    silence_compiler,
)

COMPILATION = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    """Names of the threads in which XLA has compiled, one for each compilation."""
    threads: list[str] = []

    def listen(event: str, *_, **__) -> None:
        if event == COMPILATION:
            threads.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield threads
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("transform", [jax.jit, jax.pmap])
def test_each_shape_is_compiled_once_outside_the_calling_thread(transform, compilations):
    program = Program(transform(lambda tree, x: tree["scale"][0] * jnp.cumsum(x)))
    short, long = (({"scale": np.ones((1, 1))}, np.ones((1, size))) for size in (3, 4))
    assert not program.is_compiled(*short)
    program.compile(*short)
    assert program.is_compiled(*short)
    assert not program.is_compiled(*long)
    for _ in range(2):
        np.testing.assert_array_equal(np.ravel(program(*short)), [1, 2, 3])
        np.testing.assert_array_equal(np.ravel(program(*long)), [1, 2, 3, 4])
    assert len(compilations) == 2
    assert threading.current_thread().name not in compilations


def test_a_program_that_compiles_ahead_is_not_compiled_again(compilations):
    program = Program(jax.jit(lambda x: jnp.cumsum(x) * 3))
    program.compile_ahead(np.ones(5))
    program.compile_ahead(np.ones(5))
    assert not program.is_compiled(np.ones(5))
    np.testing.assert_array_equal(program(np.ones(5)), [3, 6, 9, 12, 15])
    program.compile_ahead(np.ones(5))
    assert len(compilations) == 1 and threading.current_thread().name not in compilations


def test_an_error_while_compiling_ahead_reaches_the_first_caller(monkeypatch):
    def refuse(_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large")

    program = Program(jax.jit(lambda x: x + 2))
    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", refuse)
        program.compile_ahead(np.zeros(3))
        with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
            program(np.zeros(3))
    np.testing.assert_array_equal(program(np.zeros(3)), [2, 2, 2])


def test_settings_of_the_calling_thread_apply(compilations):
    program = Program(jax.jit(lambda x: x @ x))
    with jax.default_matmul_precision("BF16_BF16_F32"):
        program(np.eye(2, dtype=np.float32))  # in another precision, the call would compile again
    assert len(compilations) == 1


def test_free_memory_is_released_by_the_working_memory_of_a_program(monkeypatch):
    sizes = []
    monkeypatch.setattr(programs, "release_free_memory", sizes.append)
    program = Program(jax.pmap(lambda x: jnp.sum(jnp.sort(x[:, None] * x[None], axis=0), axis=1)))
    for _ in range(2):
        program(np.ones((jax.local_device_count(), 100), np.float32))
    assert len(sizes) == 1
    assert sizes[0] > (jax.local_device_count() - 1) * 100 * 100 * 4


KERNELS, LEVEL = "--xla_cpu_use_fusion_emitters=false", "--xla_backend_optimization_level=1"


@pytest.mark.parametrize(
    ("jaxlib", "cpu_alone", "before", "after"),
    [
        ("0.10.2", True, "", f"{KERNELS} {LEVEL}"),
        ("0.10.2", False, "--xla_a=1", "--xla_a=1"),
        ("0.10.2", True, "/a/file", "/a/file"),
        ("0.12.0", True, "--xla_a=1", f"--xla_a=1 {LEVEL}"),
        ("0.12.0", True, LEVEL.replace("1", "3"), LEVEL.replace("1", "3")),
        ("0.12.0", False, "", ""),
    ],
)
def test_compiler_flags_depend_on_version_and_devices(
    monkeypatch, jaxlib, cpu_alone, before, after
):
    monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setattr(programs, "version", lambda _: jaxlib)
    monkeypatch.setattr(programs, "is_cpu_only", lambda: cpu_alone)
    set_compiler_flags()
    assert os.environ["XLA_FLAGS"] == after


@pytest.mark.parametrize(
    ("platforms", "installed", "registered", "alone"),
    [
        (None, (), (), True),
        (None, ("jax_plugins",), (), False),
        (None, (), ("a plugin",), False),
        (None, ("TPU_LIBRARY_PATH",), (), False),
        ("cpu", ("jax_plugins",), (), True),
        ("cuda,cpu", (), (), False),
    ],
)
def test_an_installed_plugin_counts_as_accelerator(
    monkeypatch, platforms, installed, registered, alone
):
    for name in ("PJRT_NAMES_AND_LIBRARY_PATHS", "TPU_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
        if name in installed:
            monkeypatch.setenv(name, "a library")
    monkeypatch.setattr(programs, "find_spec", lambda name: name in installed)
    monkeypatch.setattr(programs, "entry_points", lambda group: registered)
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", platforms)
    try:
        assert is_cpu_only() == alone
    finally:
        jax.config.update("jax_platforms", before)


@pytest.mark.parametrize(("level", "expected"), [(None, 3), ("1", 3), ("0", None), ("2", None)])
def test_the_compiler_logs_only_where_it_is_asked_to(monkeypatch, level, expected):
    levels = []
    monkeypatch.setattr(programs.utils, "absl_set_min_log_level", levels.append)
    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", level or "")
    if level is None:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    silence_compiler()
    assert levels == ([expected] if expected else [])
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == ("3" if expected else level)
