"""The directory of compiled programs, where there is no home directory or none to write to."""

import os
from pathlib import Path

import jax
import pytest

from l2rm_jax.devices.programs import LEAST_SECONDS, keep_compiled_programs


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Function that returns the cache of a process with these variables, None without a cache."""
    monkeypatch.chdir(tmp_path)

    def kept(**variables: str) -> str | None:
        for name in ("HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        before = jax.config.jax_compilation_cache_dir
        try:
            jax.config.update("jax_compilation_cache_dir", None)
            keep_compiled_programs()
            return jax.config.jax_compilation_cache_dir
        finally:
            jax.config.update("jax_compilation_cache_dir", before)

    return kept


def test_programs_are_kept_in_the_cache_of_the_user(kept, tmp_path):
    assert kept(HOME=str(tmp_path)) == str(tmp_path / ".cache/l2rm_jax/compiled")
    assert kept(HOME="/", XDG_CACHE_HOME=str(tmp_path)) == str(tmp_path / "l2rm_jax/compiled")


def test_a_user_without_a_home_keeps_none(kept, monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert kept() is None
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("home", ["/dev/null", "/proc/none"])
def test_a_home_that_cannot_be_written_to_keeps_none(kept, home):
    assert kept(HOME=home) is None


def test_a_cache_of_another_user_is_not_used(kept, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert kept(HOME=str(tmp_path)) is None


def test_small_programs_are_kept_unless_the_user_says_otherwise(kept, monkeypatch, tmp_path):
    before = getattr(jax.config, LEAST_SECONDS)
    try:
        kept(HOME=str(tmp_path), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="2")
        assert getattr(jax.config, LEAST_SECONDS) == before
        monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
        kept(HOME=str(tmp_path))
        assert getattr(jax.config, LEAST_SECONDS) == 0.05
    finally:
        jax.config.update(LEAST_SECONDS, before)
