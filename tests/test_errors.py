"""Errors that carry several problems."""

import errno
import os
import pickle
from pathlib import Path

import pytest

from l2rm_jax.errors import (
    ConfigError,
    DataError,
    L2RMError,
    Problems,
    check_names,
    named_errors,
    nearest_flag,
    nearest_path,
)


def test_an_error_carries_all_its_messages():
    error = DataError("first", "second", "third")
    assert isinstance(error, L2RMError) and error.args == ("first", "second", "third")
    assert str(error).startswith("first") and "2" in str(error)
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
    with pytest.raises(DataError, match=f"{tmp_path}: .*Is a directory"):
        problems.raise_all()


def test_a_full_disk_is_no_problem_of_the_data():
    def write():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.npy")

    with pytest.raises(OSError, match=r"No space left on device: 'a\.npy'"):
        Problems().attempt(write)


def test_a_list_of_problems_keeps_the_first_hint():
    def fail(message: str, hint: str | None = None) -> None:
        raise ConfigError(message, hint=hint)

    problems = Problems()
    problems.raise_list()
    for inputs in (["a: none"], ["b: none", "--b=1"], ["c: none", "--c=1"]):
        problems.attempt(fail, *inputs)
    with pytest.raises(DataError, match="3\n  a: none\n  b: none\n") as found:
        problems.raise_list()
    assert found.value.hint == "--b=1"


def test_a_mistyped_path_is_corrected_part_by_part(tmp_path):
    mine = tmp_path / "data" / "mine"
    mine.mkdir(parents=True)
    for typed in (mine, tmp_path / "data" / "mien", tmp_path / "dat" / "mime"):
        assert nearest_path(typed) == mine
    assert nearest_path(tmp_path / "data" / "qqqq") is None
    assert nearest_path(mine / "below" / "nothing") is None
    assert nearest_flag("data", tmp_path / "dta" / "mine", ":dev") == f"--data={mine}:dev"
    assert nearest_flag("data", tmp_path / "qqqq") is None


def test_the_nearest_name_of_a_field_is_the_hint():
    with pytest.raises(ConfigError, match=r"a\.b: .*pairr.*pair, image") as caught:
        check_names("a", {"b": "pairr"}, {"b": ("pair", "image")})
    assert caught.value.hint == "--config.a.b=pair"
    with pytest.raises(ConfigError) as caught:
        check_names("a", {"b": "xyz"}, {"b": ("pair", "image")})
    assert caught.value.hint is None


def test_of_many_alike_problems_the_first_are_kept_and_all_counted():
    messages = [f"a.txt:{line}: found nothing" for line in range(3000)]
    error = DataError(*messages, "b.txt: no such file", hint="x")
    assert error.count == 3001 and str(error) == "a.txt:0: found nothing (and 3,000 more problems)"
    assert error.args[:20] == tuple(messages[:20]) and error.args[20] == "b.txt: no such file"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.args, copy.count) == (error.args, error.count) and len(copy.args) == 21
    problems = Problems()
    for message in messages:
        problems.attempt(fail, DataError(message))
    problems.attempt(fail, error)
    assert len(problems.messages) == 21
    with pytest.raises(DataError) as caught:
        problems.raise_all()
    assert caught.value.args == error.args and caught.value.count > 3000
    few = [f"{line} is wrong" for line in range(20)]
    assert ConfigError(*few).args == tuple(few)


def fail(error: Exception) -> None:
    raise error


def test_a_place_is_named_once():
    with pytest.raises(DataError) as caught, named_errors("a.tar"):
        raise DataError("a.tar: cut", "row 3: empty")
    assert caught.value.args == ("a.tar: cut", "a.tar: row 3: empty")
