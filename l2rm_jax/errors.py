"""Errors of this library: each message names the place, the found and the expected value."""

import contextlib
import difflib
import errno
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_KEPT = 20  # messages of one kind that an error keeps
_SHOWN = 5  # problems of one kind that a list of them shows
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # there is no room for a file
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def _kind(message: str) -> str:
    """The message with zeros for its numbers."""
    return _NUMBER.sub("0", message)


class L2RMError(Exception):
    """Base class of the errors that this library raises itself.

    `str(error)` is the first message and the number of further ones.

    Attributes:
      args: the messages, one for each problem; of many that differ only in their numbers, the
        first ones.
      kinds: number of problems of each kind: a message with zeros for its numbers.
      hint: what to try next, if that is known: a command, a flag or a field, ready to be pasted.
        The command line shows it on a line of its own.
    """

    def __init__(self, *messages: str, hint: str | None = None):
        self.hint, self.kinds = hint, Counter()
        kept = []
        for message in messages:
            self.kinds[kind := _kind(message)] += 1
            if self.kinds[kind] <= _KEPT:
                kept.append(message)
        super().__init__(*kept)

    @property
    def count(self) -> int:
        """Number of problems."""
        return max(1, sum(self.kinds.values()))

    def __str__(self) -> str:
        if self.count < 2:
            return self.args[0]
        others = "1 more problem" if self.count == 2 else f"{self.count - 1:,} more problems"
        return f"{self.args[0]} (and {others})"


class DataError(L2RMError, ValueError):
    """A data file, or an array passed instead of one, is missing or invalid."""


class ConfigError(L2RMError, ValueError):
    """A config field is unknown or out of range, or contradicts another field or the data."""


class DivergedError(L2RMError, ArithmeticError):
    """Numbers of a run are NaN or infinite, so it cannot continue."""


class StoppedError(L2RMError, RuntimeError):
    """A run was asked to stop by a signal; the message names the saved work.

    Attributes:
      signal: number of the signal.
      place: where it stopped, and the saved work, as a part of a sentence; "" if not known yet.
    """

    def __init__(self, message: str, signal: int, place: str = ""):
        super().__init__(message)
        self.signal, self.place = signal, place


class CheckpointError(L2RMError, RuntimeError):
    """A checkpoint or a work directory cannot be read or written."""


def is_full(error: OSError) -> bool:
    """Return whether an error says that there is no room for a file."""
    return error.errno in _FULL


def first_line(error: BaseException, max_chars: int = 1000) -> str:
    """Type and first line of an error of another library, cut to `max_chars` characters."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:max_chars]


def expand_home(path: str | Path) -> str:
    """Replace `~` or `~user` at the start of a path, which a shell leaves in `--flag=~/path`.

    Args:
      path: a file or directory; a name such as `~draft.csv` of no user stays as it is.

    Raises:
      ConfigError: there is no home directory.
    """
    expanded = os.path.expanduser(path)
    if re.match(r"~(/|$)", str(expanded)):
        raise ConfigError(
            f"{path}: found no home directory of this user, expected a path without ~"
        )
    return str(expanded)


def nearest_path(path: str | Path) -> Path | None:
    """Correct a mistyped path, part by part, to the most similar one that exists; None if none is.

    Args:
      path: a file or directory.
    """
    path = Path(path)
    if path.exists():
        return path
    parent = nearest_path(path.parent)
    if parent is None or not parent.is_dir():
        return None
    found = difflib.get_close_matches(path.name, [each.name for each in parent.iterdir()], n=1)
    return parent / found[0] if found else None


def nearest_flag(flag: str, path: str | Path, end: str = "") -> str | None:
    """The flag with the existing path most similar to a mistyped one, as a hint; None without."""
    found = nearest_path(path)
    return None if found in (None, Path(path)) else f"--{flag}={shlex.quote(f'{found}{end}')}"


def _raise_unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Put `where` in front of each message of this `with` block's errors that lacks it.

    A hint is dropped, as it is about the inner work. `StoppedError` keeps its message; its place
    gets the name.
    """
    try:
        yield
    except StoppedError as error:
        place = f"{where}, {error.place}" if error.place else where
        raise StoppedError(str(error), error.signal, place) from None
    except L2RMError as error:
        # Readers of a file name it themselves.
        named = type(error)(
            *(each if each.startswith(where) else f"{where}: {each}" for each in error.args)
        )
        named.kinds = error.kinds
        raise named from error


def list_problems(messages: Iterable[str], counts: Mapping[str, int]) -> str:
    """List messages; of those that differ only in their numbers, the first few and how many more.

    Args:
      messages: the messages.
      counts: number of problems of each kind, as `L2RMError.kinds`.
    """
    kinds: dict[str, list[str]] = {}
    for message in messages:
        kinds.setdefault(_kind(message), []).append(message)
    lines = [f"problems found: {sum(counts.values()):,}"]
    for kind, similar in kinds.items():
        lines += similar[:_SHOWN]
        if counts[kind] > _SHOWN:
            lines.append(f"... and {counts[kind] - _SHOWN:,} more like the last one")
    return "\n  ".join(lines)


class Problems:
    """Collects the errors of several checks, and raises them as one.

    Attributes:
      messages: messages of the errors so far, in order and without repetition; the first ones of
        many that differ only in their numbers.
    """

    def __init__(self) -> None:
        self.messages: dict[str, None] = {}  # an ordered set
        self._kinds: Counter = Counter()  # of all problems, and of those in `messages`
        self._kept: Counter = Counter()
        self._first: L2RMError = L2RMError()
        self._hint: str | None = None

    def attempt(self, check: Callable[..., T], *inputs: object, **settings: object) -> T | None:
        """Call `check(*inputs, **settings)` and record its error, if it raises one.

        Args:
          check: function that may raise `L2RMError` or `OSError`; one of a full disk is raised.
          *inputs: results of earlier attempts; None stands for one that failed.
          **settings: further arguments, which may be None.

        Returns:
          The result of the call; None if it failed, or was left out because an input is None.
        """
        if any(value is None for value in inputs):
            return None
        try:
            return check(*inputs, **settings)
        except OSError as error:  # a name that is too long, a file without read permission
            if is_full(error):
                raise
            return self.attempt(_raise_unreadable, error)
        except L2RMError as error:
            self._first = self._first if self.messages else error
            self._add(error)
            self._hint = self._hint or error.hint
            return None

    def _add(self, error: L2RMError) -> None:
        """Keep the first messages of each kind, and count all that are not here already."""
        kinds: dict[str, list[str]] = {}
        for message in error.args:
            kinds.setdefault(_kind(message), []).append(message)
        for kind, messages in kinds.items():
            new = [message for message in messages if message not in self.messages]
            if new:  # else the same error came from another check
                self._kinds[kind] += error.kinds[kind] - len(messages) + len(new)
                room = _KEPT - self._kept[kind]
                self.messages |= dict.fromkeys(new[:room])
                self._kept[kind] += len(new[:room])

    def raise_all(self) -> None:
        """Raise all messages as one error of the first error's type and hint, if there are any."""
        if self.messages:
            error = type(self._first)(*self.messages, hint=self._first.hint)
            error.kinds = self._kinds
            raise error

    def raise_list(self) -> None:
        """Raise all messages as one of many lines, with the first hint, if there are any."""
        if self.messages:
            raise DataError(list_problems(self.messages, self._kinds), hint=self._hint)


def nearest_name(field: str, value: Any, names: Iterable[str]) -> str | None:
    """The flag that sets a config field to the name most similar to a value; None without one."""
    found = difflib.get_close_matches(str(value), list(names), n=1)
    return f"--config.{field}={found[0]}" if found else None


def check_names(section: str, settings: Any, known: Mapping[str, Iterable[str]]) -> None:
    """Check config fields whose value must be one of some names.

    Args:
      section: name of the config section, for the messages.
      settings: the section.
      known: the allowed names of each field.

    Raises:
      ConfigError: one message for each field with another value.
    """
    fields = [field for field, names in known.items() if settings[field] not in names]
    wrong = [
        f"{section}.{field}: found {settings[field]!r}, expected one of {', '.join(known[field])}"
        for field in fields
    ]
    if wrong:
        hint = nearest_name(f"{section}.{fields[0]}", settings[fields[0]], known[fields[0]])
        raise ConfigError(*wrong, hint=hint)
