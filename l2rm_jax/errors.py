"""Errors raised on purpose: each message says where, what was found and what was expected."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class L2RMError(Exception):
    """Base of every error raised on purpose by this library.

    Attributes:
      args: the messages, one for each problem; as text, the first one and how many more there are.
    """

    def __str__(self) -> str:
        first, *more = self.args
        if not more:
            return first
        others = "1 more problem" if len(more) == 1 else f"{len(more)} more problems"
        return f"{first} (and {others}: --mode=check lists them)"


class DataError(L2RMError, ValueError):
    """A data file, or an array given in its place, is not what it should be."""


class ConfigError(L2RMError, ValueError):
    """A configuration field is unknown, out of range, or contradicts another."""


class DivergedError(L2RMError, ArithmeticError):
    """The numbers of a run are no longer finite, so there is nothing to go on from."""


class StoppedError(L2RMError, RuntimeError):
    """A run was asked to stop, and has saved where it stands."""


class CheckpointError(L2RMError, RuntimeError):
    """A checkpoint or a run directory cannot be used as asked."""


def first_line(error: Exception, most: int = 1000) -> str:
    """What another library raised, on one line of at most so many characters."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:most]


def _refuse_file(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


class Problems:
    """Goes on after an error to find the others, and raises them all as one.

    Attributes:
      messages: of the problems so far, each once, in the order found.
    """

    def __init__(self) -> None:
        self.messages: dict[str, None] = {}  # an ordered set
        self._kind: type[L2RMError] = L2RMError

    def attempt(self, part: Callable[..., T], *needs: object, **settings: object) -> T | None:
        """`part(*needs, **settings)`, or None if it fails, or if a need is None as it failed."""
        if any(need is None for need in needs):
            return None
        try:
            return part(*needs, **settings)
        except OSError as error:  # a name too long, a file that is not ours to read
            return self.attempt(_refuse_file, error)
        except L2RMError as error:
            self._kind = self._kind if self.messages else type(error)
            self.messages |= dict.fromkeys(error.args)
            return None

    def raise_all(self) -> None:
        """Raises what was found, if anything, as an error of the first one's type."""
        if self.messages:
            raise self._kind(*self.messages)


def check_names(part: str, settings: Any, known: Mapping[str, Iterable[str]]) -> None:
    """Refuses fields of a part of the config that name what does not exist.

    Args:
      part: its name, for the messages.
      settings: the part.
      known: the names that each field may have.

    Raises:
      ConfigError: lists each such field.
    """
    wrong = [
        f"{part}.{field}: {settings[field]!r} is none of {', '.join(names)}"
        for field, names in known.items()
        if settings[field] not in names
    ]
    if wrong:
        raise ConfigError(*wrong)
