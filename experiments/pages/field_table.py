"""The table of all config fields in `configs/README.md`, made from `l2rm_jax/config.py`.

python -m experiments.pages.field_table            # rewrite the table in the page
python -m experiments.pages.field_table --check    # exit with status 1 if the page is out of date

Each field makes a row: its name, its default and its comment.
"""

import argparse
import re
import sys
from pathlib import Path

from l2rm_jax.command_line.field_comments import config_source, read_fields
from l2rm_jax.errors import DataError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "configs" / "README.md"
START, END = "<!-- fields -->", "<!-- end fields -->"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    page = PAGE.read_text()
    current = updated(page, markdown(config_source()))
    if page == current:
        return
    if check:
        sys.exit(
            f"{PAGE}: the field table is out of date; run python -m experiments.pages.field_table"
        )
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


def escaped(text: str) -> str:
    """The text as Markdown shows it unchanged in a cell of a table; `code` stays as it is."""
    return re.sub(r"`[^`]*`|[\\|*<]|(?<![A-Za-z0-9])_", _escape, text)


def _escape(match: re.Match) -> str:
    return match[0] if match[0].startswith("`") else "\\" + match[0]


if __name__ == "__main__":
    main()
