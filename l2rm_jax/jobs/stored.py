"""Store the results of parts in a directory, and split them among the processes that share it."""

import hashlib
import io
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from l2rm_jax.errors import DataError, first_line
from l2rm_jax.jobs.executor import LOCAL, Executor
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.shares import SINGLE, WRITER, Part, Share, wait_for


class Stored:
    """Stores the results of an executor in a directory, which several processes may share.

    A process computes its share of the calls that have no result, and reads the other results. All
    processes, and one that resumes their work, run the same program, so the n-th map has the same
    calls in each of them. A damaged result, or the result of another call, raises a `DataError`.

    Args:
      directory: directory of the results.
      executor: computes the calls of this process.
      share: share of this process.
    """

    def __init__(self, directory: Path, executor: Executor = LOCAL, share: Share = SINGLE):
        self._directory, self._executor, self._share = directory, executor, share
        self._maps = itertools.count()

    def put(self, value: Any) -> Any:
        """Share a value among many calls, as the executor does."""
        return self._executor.put(value)

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, like: Any = 0, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Yield the results in order, as soon as they and all before them are there.

        The leaves of a result are arrays; numbers become arrays without axes.
        """
        return self._results(partial(self._executor.map, stage, on_gpu=on_gpu), calls, like)

    def once(self, compute: Callable[[], Any], like: Any) -> Any:
        """Compute a result in this process, or read the result of the first share."""
        [result] = self._results(lambda calls: (compute() for _ in calls), [()], like)
        return result

    def as_writer(self, compute: Callable[[], Any]) -> Any:
        """Compute what only the process that writes the results needs; None in the others."""
        return compute() if self._share.number == WRITER else None

    def _results(
        self, run: Callable[[Iterable[tuple]], Iterator[Any]], calls: Iterable[tuple], like: Any
    ) -> Iterator[Any]:
        folder, waiting, own = self._directory / f"{next(self._maps):03}", deque(), deque()

        def missing() -> Iterator[tuple]:
            for place, arguments in enumerate(calls):
                number = place % self._share.count + 1
                waiting.append(Part(number, folder / f"{place:08}.npz", _mark(arguments)))
                if number == self._share.number and not waiting[-1].file.exists():
                    own.append(waiting[-1])
                    yield arguments

        def results() -> Iterator[Any]:
            for result in run(missing()):
                _write(own.popleft(), result)
                while waiting and waiting[0].file.exists():
                    yield _read(waiting.popleft(), like)
            is_said = False
            while waiting:
                is_said = wait_for(waiting, is_said)
                yield _read(waiting.popleft(), like)

        return results()


def _mark(arguments: tuple) -> str:
    """Fingerprint a call by the row indices in its arguments."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(arguments):
        if isinstance(leaf, int) or (isinstance(leaf, np.ndarray) and leaf.dtype == np.int64):
            digest.update(np.ascontiguousarray(leaf))
    return digest.hexdigest()


def _write(part: Part, result: Any) -> None:
    content, leaves = io.BytesIO(), enumerate(jax.tree.leaves(result))
    np.savez(content, mark=part.mark, **{str(number): leaf for number, leaf in leaves})
    replace_file(part.file, content.getvalue())


def _read(part: Part, like: Any) -> Any:
    try:
        with np.load(io.BytesIO(part.file.read_bytes()), allow_pickle=False) as arrays:
            mark, count = str(arrays["mark"]), len(arrays) - 1
            leaves = [arrays[str(number)] for number in range(count)]
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
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
