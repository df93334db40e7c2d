"""`jax_enable_x64`, set for other work in the process, changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.devices.parallel import Replicas, in_float32, matmul_precision
from l2rm_jax.devices.programs import prepare_process


@pytest.fixture
def x64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def default_type() -> str:
    return str(jnp.ones(2).dtype)


def test_functions_compute_in_float32_and_leave_the_setting(x64):
    assert in_float32(default_type)() == "float32"
    with matmul_precision("bfloat16"):
        assert default_type() == "float32"
    assert default_type() == "float64"


def test_threads_of_the_devices_compute_in_float32(x64):
    calls = [(row, lambda: jnp.ones(3)) for row in range(4)]
    assert {str(array.dtype) for _, array in Replicas().run_ahead(calls)} == {"float32"}


def test_the_command_line_switches_it_off(x64, monkeypatch):
    for name in ("keep_freed_memory", "set_compiler_flags", "keep_compiled_programs"):
        monkeypatch.setattr(f"l2rm_jax.devices.programs.{name}", lambda: None)
    prepare_process()
    assert default_type() == "float32"


@pytest.mark.slow
def test_a_run_can_be_read_again_with_and_without_it(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    pairs = l2rm_jax.Pairs.from_arrays(vectors, vectors)
    plain = l2rm_jax.fit(pairs, tmp_path / "plain", epochs=1)
    with jax.enable_x64(True):
        l2rm_jax.fit(pairs, tmp_path / "x64", epochs=1)
        codes = l2rm_jax.load(tmp_path / "x64").encode_captions(vectors).vectors()
        longer = l2rm_jax.fit(pairs, tmp_path / "x64", epochs=2)
    assert codes.dtype == np.float32
    assert np.array_equal(codes, plain.encode_captions(vectors).vectors())
    again = l2rm_jax.load(tmp_path / "x64").encode_captions(vectors).vectors()
    assert np.array_equal(again, longer.encode_captions(vectors).vectors())
