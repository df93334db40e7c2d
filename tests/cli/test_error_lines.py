"""Errors as lines on the terminal."""

import csv
import errno
import shutil

import pytest

from l2rm_jax.cli.error_lines import error_lines, interrupted_line
from l2rm_jax.cli.parse import parse
from l2rm_jax.errors import ConfigError
from l2rm_jax.main import MODES as REAL_MODES
from tests.cli.modes import MODES, parsed


def test_an_error_is_a_line_and_its_hint_another():
    assert error_lines(ConfigError("seed: -1, expected 0")) == "error: seed: -1, expected 0"
    assert error_lines(ConfigError("a: none", hint="--a=1")) == "error: a: none\n  try: --a=1"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--workdir=a --data=D", "\n  try: l2rm check --data=D"),
        ("check --data=D", ""),
        ("rank", ""),
    ],
)
def test_the_command_that_lists_all_problems_is_named_where_it_lists_more(line, hint):
    several = error_lines(ConfigError("first", "second", "third"), parsed(line), MODES)
    assert several.startswith("error: first") and several.endswith(hint or ")")
    one = error_lines(ConfigError("first"), parsed(line), MODES)
    assert one == "error: first"


def test_an_error_of_the_system_names_its_file():
    error = OSError(errno.ENOSPC, "No space left on device", "runs/a")
    assert error_lines(error) == "error: runs/a: No space left on device"
    assert error_lines(OSError("odd")) == "error: odd"


@pytest.mark.parametrize("write", ["text", "bytes", "table", "copy"])
def test_a_full_disk_is_named_by_its_file_whoever_writes(write, tmp_path):
    """/dev/full is a disk without room; Python's errors of writing to it name no file."""
    path, full = tmp_path / "a", tmp_path / "full"
    full.symlink_to("/dev/full")
    path.write_bytes(bytes(10))

    def write_table():
        with full.open("w") as file, path.open():
            csv.writer(file).writerow([1])

    with pytest.raises(OSError) as error:
        {
            "text": lambda: full.write_text("a"),
            "bytes": lambda: full.write_bytes(b"a"),
            "table": write_table,
            "copy": lambda: shutil.copy(path, full),
        }[write]()
    assert error_lines(error.value) == f"error: {full}: No space left on device"


def test_ctrl_c_says_what_is_kept_and_how_to_go_on():
    line = interrupted_line(parse(["import", "--source=a b.csv", "--out=D"], REAL_MODES))
    assert "D.partial" in line and line.endswith("l2rm import '--source=a b.csv' --out=D")
    assert interrupted_line(parsed("rank --workdir=W")).endswith("l2rm rank --workdir=W")
