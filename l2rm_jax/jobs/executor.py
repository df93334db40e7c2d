"""Interface of an executor, which computes parts, and the executor of this process."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Protocol


class Later:
    """Argument of a call that is computed when the first part needs it, and then kept."""

    def __init__(self, compute: Callable[[], Any]):
        self._compute = compute

    @cached_property
    def value(self) -> Any:
        """The argument."""
        return self._compute()


def values(arguments: Iterable[Any]) -> list[Any]:
    """Return the arguments of a call, computed where they are `Later`."""
    return [each.value if isinstance(each, Later) else each for each in arguments]


class Executor(Protocol):
    """Runs the parts of long work."""

    def put(self, value: Any) -> Any:
        """Share a value among many calls; return the handle to pass as their argument."""

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, like: Any = 0, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Yield the result of `stage` for each tuple of arguments, in order.

        Calls are consumed lazily, as capacity becomes free, and an argument that is `Later` is
        computed for the first call that needs it. Results have the tree structure of `like`. With
        `on_gpu`, each call has a GPU of its own, if there are any.
        """

    def once(self, compute: Callable[[], Any], like: Any) -> Any:
        """Compute a result in this process, unless it is stored or another process computes it."""

    def as_writer(self, compute: Callable[[], Any]) -> Any:
        """Compute what only the process that writes the results needs; None in the others."""


class Local:
    """Runs parts in this process, one after the other."""

    def put(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, like: Any = 0, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Compute each part when its result is requested."""
        return (stage(*values(arguments)) for arguments in calls)

    def once(self, compute: Callable[[], Any], like: Any) -> Any:
        """Compute the result."""
        return compute()

    def as_writer(self, compute: Callable[[], Any]) -> Any:
        """Compute the result."""
        return compute()


LOCAL = Local()
