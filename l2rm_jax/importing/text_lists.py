"""Parse the lists and objects in a cell that JSON, Python or NumPy wrote as text."""

import ast
import json
import re
from typing import Any

_STRING = re.compile(r"""[uUbB]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)
_NOTHING = re.compile(r"None\b|null\b|NULL\b|nan\b|NaN\b|NaT\b|<NA>|NA\b")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|True\b|False\b|true\b|false\b")
_CALL = re.compile(r"[\w.]+\(")  # NumPy's array(, list(, np.str_(
_SETTING = re.compile(r"\w+=[^,()]*")  # NumPy's dtype=object
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class UnreadableError(ValueError):
    """A cell looks like a list of captions and cannot be read; the message says why."""


def parse_list(text: str) -> Any:
    """Parse a list or an object that JSON, Python or NumPy wrote as text.

    Raises:
      UnreadableError: it is damaged, or of another kind.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        value, end = _value(text, _skip(text, 0))
    except (RecursionError, SyntaxError, IndexError):
        raise UnreadableError("brackets that do not close") from None
    if _skip(text, end) != len(text):
        raise UnreadableError(f"{text[end : end + 20]!r} after the end of a list")
    if isinstance(value, tuple) and len(value) == 1 and "," not in text[-3:]:
        raise UnreadableError("text in parentheses")  # ("so") is no list in Python either
    return list(value) if isinstance(value, tuple) else value


def _skip(text: str, at: int, also: str = "") -> int:
    while at < len(text) and (text[at].isspace() or text[at] in also):
        at += 1
    return at


def _value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends."""
    if match := _STRING.match(text, at):
        value = ast.literal_eval(match[0].replace("\r", "\\r").replace("\n", "\\n"))
        return as_text(value), match.end()
    if match := _NOTHING.match(text, at):
        return None, match.end()
    if match := _NUMBER.match(text, at):
        return 0.0, match.end()  # a number is no caption, whichever it is
    if match := _CALL.match(text, at):
        inner, end = _items(text, match.end(), ")", is_call=True)
        return (inner[0] if inner else []), end
    if text[at] in _CLOSING:
        items, end = _items(text, at + 1, _CLOSING[text[at]])
        return (tuple(items) if text[at] == "(" else items), end
    raise UnreadableError(f"{text[at : at + 20]!r}, expected text in quotes")


def _items(text: str, at: int, closing: str, is_call: bool = False) -> tuple[Any, int]:
    """The elements up to a bracket, divided by commas or, as NumPy does, by spaces; or an object.

    Settings of a call, such as `dtype=object`, are left out.
    """
    items: list[Any] = []
    fields: dict[Any, Any] = {}
    while text[at := _skip(text, at, ",")] != closing:
        if is_call and (match := _SETTING.match(text, at)):
            at = match.end()
            continue
        value, at = _value(text, at)
        after = _skip(text, at)
        if closing == "}" and text[after] == ":":
            fields[value], at = _value(text, _skip(text, after + 1))
        else:
            items.append(value)
    return fields or items, at + 1


def as_text(value: Any) -> str:
    """Text of a value; bytes are read as UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
