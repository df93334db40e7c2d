"""The fields of the config with their comments, read from the source of `config.py`.

Each assignment `section.field = value` in the function `default` is a field. Its comment stands at
the end of the line or in the lines right above.
"""

import ast
import io
import tokenize
from pathlib import Path
from typing import NamedTuple

from l2rm_jax import config

TOP = ""  # the section of the fields that belong to none


class Field(NamedTuple):
    """A field of the config.

    Attributes:
      section: name of its section, `train`; `TOP` for `seed` and other fields of no section.
      name: `train.epochs`.
      default: as the source writes it, if that is a literal; else the value.
      meaning: its comment.
    """

    section: str
    name: str
    default: str
    meaning: str


def config_source() -> str:
    """The source of `config.py`."""
    return Path(config.__file__).read_text(encoding="utf-8")


def read_fields(source: str) -> tuple[dict[str, str], list[Field]]:
    """The comment of each section, and all fields, both in the source's order."""
    comments = _comments(source)
    [function] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "default"
    ]
    sections = {"config": TOP}  # the section that a variable names
    about, fields = {TOP: ""}, []
    for node in function.body:
        if not isinstance(node, ast.Assign):
            continue
        paths = [_section_and_name(target) for target in node.targets]
        [(variable, name)] = [path for path in paths if path] or [("", "")]
        if variable not in sections:
            continue  # `config = ConfigDict()`
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "ConfigDict":
            sections |= {target.id: name for target in node.targets if isinstance(target, ast.Name)}
            about[name] = _comment_of(node, comments)
        else:
            section = sections[variable]
            full_name = f"{section}.{name}" if section else name
            meaning = _comment_of(node, comments)
            fields.append(Field(section, full_name, _shown(source, node.value, full_name), meaning))
    return about, fields


def _section_and_name(target: ast.expr) -> tuple[str, str] | None:
    """`train.epochs` as ("train", "epochs"); None for a plain variable."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return target.value.id, target.attr
    return None


def _shown(source: str, value: ast.expr, name: str) -> str:
    """The default of a field: 2e-4 rather than 0.0002 if that is what the source says."""
    try:
        ast.literal_eval(value)
    except ValueError:  # an expression
        return repr(config.flat(config.default())[name])
    return ast.get_source_segment(source, value) or ""


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """Text of the comment of each line, and whether it has the line to itself."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def _comment_of(node: ast.Assign, comments: dict[int, tuple[str, bool]]) -> str:
    """The lines of comment right above an assignment, then those on its own lines."""
    first = node.lineno
    while comments.get(first - 1, ("", False))[1]:
        first -= 1
    lines = range(first, (node.end_lineno or node.lineno) + 1)
    return " ".join(comments[line][0] for line in lines if line in comments)
