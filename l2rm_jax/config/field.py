"""Config fields: default, meaning and allowed values."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Allowed(NamedTuple):
    """Allowed values of a field.

    Attributes:
      holds: whether a value is allowed; called with values of the type of the default.
      words: description of the allowed values, for an error: `expected ...`.
    """

    holds: Callable[[Any], bool]
    words: str


class Field(NamedTuple):
    """A field of the config.

    Names of methods, heads, losses and the like are checked where they are used, because plug-ins
    can add names.

    Attributes:
      default: value of the field if it is not set; a value of another type is an error.
      meaning: description for `--help` and the table in `configs/README.md`.
      allowed: allowed values of this type; None for all.
      is_path: whether it is a file or directory, which may begin with `~`.
    """

    default: Any
    meaning: str
    allowed: Allowed | None = None
    is_path: bool = False


def at_least(lowest: float, reason: str = "") -> Allowed:
    """Allow `lowest` or more; `reason` is added to the message."""
    return Allowed(lambda x: x >= lowest, _with(f"at least {lowest}", reason))


def between(lowest: float, highest: float, reason: str = "") -> Allowed:
    """Allow `lowest` to `highest`, inclusive."""
    return Allowed(lambda x: lowest <= x <= highest, _with(f"{lowest} to {highest}", reason))


def one_of(*names: str) -> Allowed:
    """Allow the given names."""
    return Allowed(lambda x: x in names, " or ".join(names))


def _with(words: str, reason: str) -> str:
    return f"{words}, {reason}" if reason else words


ABOVE_0 = Allowed(lambda x: x > 0, "more than 0")
BELOW_1 = Allowed(lambda x: 0 <= x < 1, "at least 0 and less than 1")
BELOW_1_OR_NONE = Allowed(lambda x: x == -1 or 0 <= x < 1, "at least 0 and less than 1, or -1")
INSIDE_0_1 = Allowed(lambda x: 0 < x < 1, "more than 0 and less than 1")
