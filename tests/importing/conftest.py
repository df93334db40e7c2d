"""Tests of the import, for which its extra is installed; pictures in a directory of their own."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.importing.made import write_pictures

collect_ignore_glob = [] if find_spec("datasets") else ["test_*.py"]


@pytest.fixture
def root(tmp_path) -> Path:
    write_pictures(tmp_path)
    return tmp_path
