"""Split parts among several processes, on any machines, that share a directory."""

import hashlib
import itertools
import logging
import pickle
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from l2rm_jax.errors import ConfigError, DataError, first_line
from l2rm_jax.jobs.files import replace_file

_log = logging.getLogger(__name__)

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


class Shared:
    """Computes this process's share of the calls, and reads the other results from files.

    All processes run the same program, so the n-th map has the same calls in each of them. Existing
    results are not computed again. A damaged result, or the result of another call, raises a
    `DataError`.

    Args:
      directory: directory of the results. Nobody else may have write access: results are pickled.
      share: share of this process.
    """

    def __init__(self, directory: Path, share: Share):
        self._directory, self._share = directory, share
        self._maps = itertools.count()

    def put(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Compute this process's calls while other results come in; yield all in order."""
        return self._results(self._directory / f"{next(self._maps):03}", stage, calls)

    def _results(self, folder: Path, stage: Callable, calls: Iterable[tuple]) -> Iterator[Any]:
        waiting: deque[Part] = deque()
        for place, arguments in enumerate(calls):
            owner = place % self._share.count + 1
            part = Part(owner, folder / f"{place:08}", _mark(arguments))
            if owner == self._share.number and not part.file.exists():
                _write(part, stage(*arguments))
            waiting.append(part)
            while waiting and waiting[0].file.exists():
                yield _read(waiting.popleft())
        is_said = False
        while waiting:
            is_said = wait_for(waiting, is_said)
            yield _read(waiting.popleft())


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


def _mark(arguments: tuple) -> str:
    """Fingerprint a call by the row indices in its arguments."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(arguments):
        if isinstance(leaf, int) or (isinstance(leaf, np.ndarray) and leaf.dtype == np.int64):
            digest.update(np.ascontiguousarray(leaf))
    return digest.hexdigest()


def _write(part: Part, result: Any) -> None:
    content = pickle.dumps((part.mark, result), protocol=pickle.HIGHEST_PROTOCOL)
    replace_file(part.file, content)


def _read(part: Part) -> Any:
    try:
        mark, result = pickle.loads(part.file.read_bytes())
    except Exception as error:  # a damaged file can raise anything
        raise DataError(
            f"{part.file}: not the result of a part ({first_line(error, 200)}); remove the file to "
            "continue"
        ) from error
    if mark != part.mark:
        raise DataError(
            f"{part.file}: found the result of a different call, from share {part.number}; "
            "expected the same command in all processes, on machines of one kind"
        )
    return result
