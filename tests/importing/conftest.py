"""Pictures in a directory of their own, for the tests of the import."""

from pathlib import Path

import pytest

from tests.importing.made import write_pictures


@pytest.fixture
def root(tmp_path) -> Path:
    write_pictures(tmp_path)
    return tmp_path
