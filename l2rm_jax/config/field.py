"""What a field of the config is: its default, its meaning, and the numbers that it may have."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Allowed(NamedTuple):
    """The values that a field may have.

    Attributes:
      holds: whether a value is one of them; called with values of the type of the default.
      words: what they are, for an error: `expected ...`.
    """

    holds: Callable[[Any], bool]
    words: str


class Field(NamedTuple):
    """A field of the config.

    Names of methods, heads, losses and the like are checked by what reads them, as plug-ins add to
    them.

    Attributes:
      default: its value where nothing sets it; a value of another type is an error.
      meaning: what it does, for `--help` and the table in `configs/README.md`.
      allowed: which values of that type it may have; None for all.
    """

    default: Any
    meaning: str
    allowed: Allowed | None = None


def at_least(lowest: float, reason: str = "") -> Allowed:
    """`lowest` or more; `reason` says why."""
    return Allowed(lambda x: x >= lowest, _with(f"at least {lowest}", reason))


def between(lowest: float, highest: float, reason: str = "") -> Allowed:
    """`lowest` to `highest`, both included."""
    return Allowed(lambda x: lowest <= x <= highest, _with(f"{lowest} to {highest}", reason))


def one_of(*names: str) -> Allowed:
    """One of some names."""
    return Allowed(lambda x: x in names, " or ".join(names))


def _with(words: str, reason: str) -> str:
    return f"{words}, {reason}" if reason else words


ABOVE_0 = Allowed(lambda x: x > 0, "more than 0")
BELOW_1 = Allowed(lambda x: 0 <= x < 1, "at least 0 and less than 1")
BELOW_1_OR_NONE = Allowed(lambda x: x == -1 or 0 <= x < 1, "at least 0 and less than 1, or -1")
INSIDE_0_1 = Allowed(lambda x: 0 < x < 1, "more than 0 and less than 1")
