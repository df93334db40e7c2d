"""Parse the lists and objects in a cell that JSON, Python or NumPy wrote as text."""

import ast
import json
import re
from typing import Any

_STRING = re.compile(r"""([uUbB]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))""", re.DOTALL)
_SPACE = re.compile(r"(?<=[\w)\]}']) (?=[\w(\[{'])")  # between two elements, as NumPy writes it
_NAMES = dict.fromkeys(("null", "NULL", "nan", "NaN", "NaT", "NA")) | {"true": True, "false": False}


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
        match ast.parse(f"[{_as_python(text)}]", mode="eval").body:
            case ast.List(elts=[node]):
                value = _value(node)
            case _:
                raise UnreadableError("more than a list")
    except UnreadableError:
        raise
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        # Python's own words differ from version to version, and may hold an address in memory.
        raise UnreadableError("no list of Python, NumPy or JSON") from None
    if text.lstrip().startswith("(") and not isinstance(value, list):
        raise UnreadableError("text in parentheses")  # ("so") is no list in Python either
    return value


def _as_python(text: str) -> str:
    """A list as Python writes it: with commas, without line breaks in texts, and None for <NA>."""
    parts = _STRING.split(text)  # texts in quotes, and the gaps around them
    parts[1::2] = (each.replace("\r", "\\r").replace("\n", "\\n") for each in parts[1::2])
    for at in range(0, len(parts), 2):
        before, after = "'" * (at > 0), "'" * (at < len(parts) - 1)
        gap = re.sub(r"\s+", " ", f"{before} {parts[at].replace('<NA>', 'None')} {after}")
        parts[at] = _SPACE.sub(",", gap).removeprefix(before).removesuffix(after)
    return "".join(parts)


def _value(node: ast.expr) -> Any:
    """The value of a list; of a call such as NumPy's `array(`, its first argument."""
    match node:
        case ast.Constant() | ast.UnaryOp():
            value = ast.literal_eval(node)
            return as_text(value) if isinstance(value, bytes) else value
        case ast.List() | ast.Tuple() | ast.Set():
            return [_value(each) for each in node.elts]
        case ast.Dict(keys=keys) if None not in keys:
            return {_value(key): _value(each) for key, each in zip(keys, node.values, strict=True)}
        case ast.Call(func=ast.Name() | ast.Attribute()):
            return _value(node.args[0]) if node.args else []
        case ast.Name() if node.id in _NAMES:
            return _NAMES[node.id]
    raise UnreadableError(f"{ast.unparse(node)[:20]!r}, expected text in quotes")


def as_text(value: Any) -> str:
    """Text of a value; bytes are read as UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
