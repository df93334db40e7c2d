"""Errors that carry several problems."""

from pathlib import Path

import pytest

from l2rm_jax.errors import DataError, L2RMError, Problems


def test_an_error_carries_all_its_messages():
    error = DataError("first", "second", "third")
    assert isinstance(error, L2RMError) and error.args == ("first", "second", "third")
    assert str(error) == "first (and 2 more problems: --mode=check lists them)"
    assert str(DataError("only")) == "only"


def test_a_file_that_cannot_be_read_is_a_data_error(tmp_path):
    problems = Problems()
    assert problems.attempt(Path.read_bytes, tmp_path) is None
    with pytest.raises(DataError, match=f"{tmp_path}: cannot be read: Is a directory"):
        problems.raise_all()
