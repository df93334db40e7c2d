"""Interface of an executor, and the executor that is this process."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol


class Executor(Protocol):
    """Runs the parts of long work."""

    def put(self, value: Any) -> Any:
        """Share a value among many calls; return the handle to pass as their argument."""

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Yield the result of `stage` for each tuple of arguments, in order.

        Calls are consumed lazily, as capacity becomes free. With `on_gpu`, each call has a GPU of
        its own, if there are any.
        """


class Local:
    """Runs parts in this process, one after the other."""

    def put(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Compute each part when its result is requested."""
        return (stage(*arguments) for arguments in calls)


LOCAL = Local()
