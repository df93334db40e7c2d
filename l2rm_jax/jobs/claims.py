"""Claim the work in progress in a directory, so that only the same command resumes it."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from l2rm_jax.errors import ConfigError, L2RMError
from l2rm_jax.jobs.files import replace_file


@contextlib.contextmanager
def removed_if_refused(partial: Path, is_new: bool) -> Iterator[None]:
    """Remove the directory of work, if it is new, where an error of this library ends the block."""
    try:
        yield
    except L2RMError:
        if is_new:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def check_work(file: Path, identity: Mapping[str, Any], what: str) -> None:
    """Check that work in progress, if there is any, is of the same command.

    Args:
      file: where the identity of the work is kept, in a directory of `NAME.partial`.
      identity: all that the result depends on.
      what: the kind of work, for the message: "import".

    Raises:
      ConfigError: it is of another command; the message names the differences.
    """
    now = json.loads(json.dumps(identity))
    try:
        known = json.loads(file.read_bytes()) if file.exists() else now
    except ValueError:
        known = {}
    if names := [name for name in now if known.get(name) != now[name]]:
        raise other_work_error(file.parent.parent, what, f"it differs in {', '.join(names)}")


def claim_work(file: Path, identity: Mapping[str, Any], what: str) -> None:
    """As `check_work`; then keep the identity, so that no other command continues the work."""
    check_work(file, identity, what)
    replace_file(file, json.dumps(identity).encode())


def other_work_error(partial: Path, what: str, how: str) -> ConfigError:
    """The error that a directory holds work in progress of another command."""
    return ConfigError(
        f"{partial}: holds another {what} in progress ({how}), expected the same command again, "
        "or another --out",
        hint=f"rm -r {partial}",
    )
