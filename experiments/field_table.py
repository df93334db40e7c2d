"""The table of all config fields in `configs/README.md`, made from `l2rm_jax/config.py`.

python -m experiments.field_table            # rewrite the table in the page
python -m experiments.field_table --check    # exit with status 1 if the page is out of date

Each assignment `section.field = value` in the function `default` makes a row: the field, its
default, and its comment, which stands at the end of the line or in the lines right above.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

from l2rm_jax.config import default, flat
from l2rm_jax.errors import DataError

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "l2rm_jax" / "config.py", ROOT / "configs" / "README.md"
START, END = "<!-- fields -->", "<!-- end fields -->"
TOP = ""  # the section of the fields that belong to none


class Field(NamedTuple):
    """One row of the table."""

    section: str  # "train"; `TOP` for `seed` and other fields of no section
    name: str  # "train.epochs"
    default: str  # as the source writes it, if that is a literal; else the value
    meaning: str


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    page = PAGE.read_text()
    current = updated(page, markdown(SOURCE.read_text()))
    if page == current:
        return
    if check:
        sys.exit(f"{PAGE}: the field table is out of date; run python -m experiments.field_table")
    PAGE.write_text(current)


def updated(page: str, table: str) -> str:
    """The page with `table` between the marks `START` and `END`.

    Raises:
      DataError: the page does not hold each mark once, in this order.
    """
    block = re.compile(f"{re.escape(START)}\n.*?{re.escape(END)}", re.DOTALL)
    if page.count(START) != 1 or page.count(END) != 1 or not block.search(page):
        raise DataError(f"{PAGE}: expected the line {START} once and, below it, {END} once")
    return block.sub(lambda _: f"{START}\n\n{table}\n{END}", page)


def markdown(source: str) -> str:
    """A heading, the section's comment and a table for each section of the config."""
    about, fields = read_fields(source)
    lines = []
    for section, comment in about.items():
        rows = [field for field in fields if field.section == section]
        lines += [f"### {f'`{section}`' if section else 'Of the run as a whole'}", ""]
        if comment:
            lines += [escaped(comment), ""]
        if rows:
            lines += ["| field | default | meaning |", "|---|---|---|"]
            lines += [
                f"| `{row.name}` | `{row.default}` | {escaped(row.meaning)} |" for row in rows
            ]
            lines.append("")
    return "\n".join(lines)


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


def escaped(text: str) -> str:
    """The text as Markdown shows it unchanged in a cell of a table; `code` stays as it is."""
    return re.sub(r"`[^`]*`|[\\|*<]|(?<![A-Za-z0-9])_", _escape, text)


def _escape(match: re.Match) -> str:
    return match[0] if match[0].startswith("`") else "\\" + match[0]


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
        return repr(flat(default())[name])
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


if __name__ == "__main__":
    main()
