"""Work in progress, kept beside its result: only the command that began it may go on with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2rm_jax.data.files import replace_file
from l2rm_jax.errors import ConfigError

WORK = "work"  # directory in `OUT.partial`; it is removed when the result is complete


def keep_identity(partial: Path, identity: Mapping[str, Any], what: str) -> None:
    """Check work in progress as `check_identity` does, and write down whose it is.

    Args:
      partial: the directory `OUT.partial`.
      identity: all that the result depends on, as JSON.
      what: what the work is: "import" or "audit".

    Raises:
      ConfigError: as `check_identity`.
    """
    check_identity(partial, identity, what)
    replace_file(_file(partial, what), json.dumps(identity).encode())


def check_identity(partial: Path, identity: Mapping[str, Any], what: str) -> None:
    """Check that work in progress, if there is any, has this identity; it may have more fields.

    Args:
      partial: as in `keep_identity`.
      identity: likewise; may be a part of it.
      what: likewise.

    Raises:
      ConfigError: names the fields that differ.
    """
    file, now = _file(partial, what), json.loads(json.dumps(identity))
    try:
        known = json.loads(file.read_bytes()) if file.exists() else now
    except ValueError:  # damaged: it is of no command that could be named
        known = {}
    if names := [name for name in now if known.get(name) != now[name]]:
        raise other_work_error(partial, f"it differs in {', '.join(names)}", what)


def other_work_error(partial: Path, how: str, what: str) -> ConfigError:
    """Return the error about work in progress of another command; `how` says how that is known."""
    return ConfigError(
        f"{partial}: holds another {what} in progress ({how}), expected the same command again, or "
        "another --out",
        hint=f"rm -r {partial}",
    )


def _file(partial: Path, what: str) -> Path:
    return partial / WORK / f"{what}.json"
