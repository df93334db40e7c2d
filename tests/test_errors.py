"""Errors that carry several problems."""

import pickle
from pathlib import Path

import pytest

from l2rm_jax.errors import ConfigError, DataError, L2RMError, Problems


def test_an_error_carries_all_its_messages():
    error = DataError("first", "second", "third")
    assert isinstance(error, L2RMError) and error.args == ("first", "second", "third")
    assert str(error) == "first (and 2 more problems)"
    assert str(DataError("only")) == "only"


def test_an_error_keeps_its_hint_among_others_and_between_processes():
    def fail(name):
        raise ConfigError(f"{name}: empty", hint=f"--{name}=1")

    problems = Problems()
    problems.attempt(fail, "first")
    problems.attempt(fail, "second")
    with pytest.raises(ConfigError) as caught:
        problems.raise_all()
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.args == ("first: empty", "second: empty") and again.hint == "--first=1"


def test_a_file_that_cannot_be_read_is_a_data_error(tmp_path):
    problems = Problems()
    assert problems.attempt(Path.read_bytes, tmp_path) is None
    with pytest.raises(DataError, match=f"{tmp_path}: cannot be read: Is a directory"):
        problems.raise_all()
