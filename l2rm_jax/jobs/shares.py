"""Split parts among several processes, on any machines, that share a directory."""

import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from l2rm_jax.errors import ConfigError

_log = logging.getLogger(__name__)

WRITER = 1  # number of the process that writes the results
_POLL_SECONDS = 1.0
_QUIET_SECONDS = 10.0  # of waiting, before a line names the missing shares


class Share(NamedTuple):
    """Share of a process: part number `number` (counted from 1) of every `count` parts."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


SINGLE = Share()


def parse_share(text: str) -> Share:
    """Parse the value of `--share`, such as 2/8.

    Raises:
      ConfigError: it is not I/N with I from 1 to N.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    share = Share(*map(int, match.groups())) if match else Share(0, 0)
    if not 1 <= share.number <= share.count:
        raise ConfigError(
            f"--share={text}: expected I/N, process I of N, counted from 1", hint="--share=1/2"
        )
    return share


class Part(NamedTuple):
    """File with a result, written by one of the processes.

    Attributes:
      number: number of the process.
      file: path of the file, which appears when it is complete.
      mark: fingerprint of the call whose result it contains.
    """

    number: int
    file: Path
    mark: str = ""


def wait_for(parts: Sequence[Part], is_said: bool = False) -> bool:
    """Wait until the first file exists; after a while, log the shares whose files are missing.

    Args:
      parts: the files.
      is_said: whether this has been logged already.

    Returns:
      Whether it has been logged by now.
    """
    began = time.monotonic()
    while not parts[0].file.exists():
        if not is_said and time.monotonic() - began > _QUIET_SECONDS:
            numbers = sorted({part.number for part in parts if not part.file.exists()})
            _log.info("waiting for %s", ", ".join(f"share {number}" for number in numbers))
            is_said = True
        time.sleep(_POLL_SECONDS)
    return is_said
