"""Find directories by their names on the Hugging Face Hub: `owner/name`."""

import re
from collections.abc import Sequence
from pathlib import Path

from l2rm_jax.errors import DataError, first_line

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def find_directory(name: str | Path, files: Sequence[str]) -> Path:
    """Return the directory of this name, fetched from the Hub if there is none on this machine.

    Fetched files are stored in the Hub's cache, and are fetched again only if they have changed.

    Args:
      name: a path, or `owner/name`.
      files: the files to fetch; `*` stands for any letters.

    Returns:
      The path. It need not exist, unless it is from the Hub.

    Raises:
      DataError: the Hub does not give the files, or its package is not installed.
    """
    # Where there is a directory `runs`, runs/name is meant as a path.
    is_name = _NAME.fullmatch(str(name)) and not Path(name).parent.is_dir()
    if Path(name).exists() or not is_name:
        return Path(name)
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(
            f"{name}: no such directory; to fetch it from the Hugging Face Hub, install "
            f"huggingface_hub ({error})",
            hint="pip install huggingface_hub",
        ) from error
    try:
        return Path(snapshot_download(str(name), allow_patterns=[*files]))
    except Exception as error:  # of any kind: no network, no such name, no access
        raise DataError(
            f"{name}: no such directory, and the Hugging Face Hub does not give it "
            f"({first_line(error, 200)})"
        ) from error
