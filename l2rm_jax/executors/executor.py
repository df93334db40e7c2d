"""What computes parts, and the executor that is this process."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol


class Executor(Protocol):
    """Computes parts."""

    def put(self, value: Any) -> Any:
        """Return what stands for a value in the arguments of many calls."""

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Yield what `stage` returns for each tuple of arguments, in their order.

        Calls are taken one by one, as they can be computed. With `on_gpu`, each has a GPU to itself
        where there are any.
        """


class Local:
    """Computes parts in this process, one after the other."""

    def put(self, value: Any) -> Any:
        """The value itself."""
        return value

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Compute a part when it is asked for."""
        return (stage(*arguments) for arguments in calls)


LOCAL = Local()
