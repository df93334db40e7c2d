"""Work in progress is continued by the command that began it, and by no other one."""

import pytest

from l2rm_jax.data.in_progress import check_identity, keep_identity
from l2rm_jax.errors import ConfigError

IDENTITY = {"source": "pairs.csv", "shares": (0.8, 0.1, 0.1), "seed": 3}


def test_only_the_same_identity_or_a_part_of_it_goes_on(tmp_path):
    check_identity(tmp_path, IDENTITY, "import")  # nothing is in progress
    keep_identity(tmp_path, IDENTITY, "import")
    keep_identity(tmp_path, IDENTITY, "import")
    check_identity(tmp_path, {"seed": 3}, "import")
    check_identity(tmp_path, {"seed": 4}, "audit")  # other work has its own identity
    with pytest.raises(ConfigError, match=r"another import.*differs in source, seed\)") as error:
        keep_identity(tmp_path, {**IDENTITY, "source": "other.csv", "seed": 4}, "import")
    assert error.value.hint == f"rm -r {tmp_path}"
    check_identity(tmp_path, IDENTITY, "import")  # what was refused has changed nothing


def test_a_damaged_identity_is_of_no_command(tmp_path):
    keep_identity(tmp_path, IDENTITY, "import")
    [file] = (tmp_path / "work").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ConfigError, match="it differs in source, shares, seed"):
        check_identity(tmp_path, IDENTITY, "import")
