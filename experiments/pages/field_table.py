"""The list of all config fields in `configs/README.md`, made from `l2rm_jax/config`.

python -m experiments.pages.field_table            # rewrite the list in the page
python -m experiments.pages.field_table --check    # exit with status 1 if the page is out of date

Each field makes a line: its name, its default and its meaning.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.script import new_parser
from l2rm_jax.config import FIELDS, SECTIONS
from l2rm_jax.config.field import Field
from l2rm_jax.errors import DataError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "configs" / "README.md"
START, END = "<!-- fields -->", "<!-- end fields -->"


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    page = PAGE.read_text()
    current = updated(page, markdown(FIELDS, SECTIONS))
    if page == current:
        return
    if check:
        sys.exit(f"{PAGE}: the fields are out of date; run python -m experiments.pages.field_table")
    PAGE.write_text(current)


def updated(page: str, fields: str) -> str:
    """The page with `fields` between the marks `START` and `END`.

    Raises:
      DataError: the page does not hold each mark once, in this order.
    """
    block = re.compile(f"{re.escape(START)}\n.*?{re.escape(END)}", re.DOTALL)
    if page.count(START) != 1 or page.count(END) != 1 or not block.search(page):
        raise DataError(f"{PAGE}: expected the line {START} once and, below it, {END} once")
    return block.sub(lambda _: f"{START}\n\n{fields}\n{END}", page)


def markdown(fields: Mapping[str, Field], sections: Mapping[str, str]) -> str:
    """Return a heading, a description and a list of fields for each section of the config."""
    lines = []
    for section, about in sections.items():
        rows = {name: each for name, each in fields.items() if name.rpartition(".")[0] == section}
        lines += [f"### {f'`{section}`' if section else 'General'}", ""]
        if about:
            lines += [escaped(about), ""]
        if rows:
            lines += [
                f"- `{name} = {_shown(each.default)}`: {escaped(each.meaning)}"
                for name, each in rows.items()
            ]
            lines.append("")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def escaped(text: str) -> str:
    """The text as Markdown shows it unchanged; `code` stays as it is."""
    return re.sub(r"`[^`]*`|[\\*<]|(?<![A-Za-z0-9])_", _escape, text)


def _escape(match: re.Match) -> str:
    return match[0] if match[0].startswith("`") else "\\" + match[0]


if __name__ == "__main__":
    main()
