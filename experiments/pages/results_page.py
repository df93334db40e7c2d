"""Tables of measured numbers in the pages, made from the CSV files of `experiments/results/`.

python -m experiments.pages.results_page              # rewrite the tables in all pages
python -m experiments.pages.results_page PAGE PAGE    # in these pages only
python -m experiments.pages.results_page --check      # exit with status 1 if a page is out of date

In a page, the lines between these two marks are replaced by the CSV as a Markdown table:

    <!-- table: results/NAME.csv -->
    <!-- end table -->

The path is relative to `experiments/`, whatever directory the page is in. The first row of a CSV
holds the column names. With `results/NAME.csv, TITLE`, the CSV holds runs of the benchmark, a row
each, and the table is its report's table of that title. `; without NAME/NAME` at the end leaves
these columns out.
"""

import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.script import new_parser, start
from l2rm_jax.errors import DataError

ROOT = Path(__file__).parents[2]
EXPERIMENTS = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "experiments/RESULTS.md",
    "experiments/results/README.md",
    "experiments/results/ABLATIONS.md",
    "experiments/results/SMALLER.md",
    "experiments/bench/README.md",
    "l2rm_jax/audit/README.md",
    "l2rm_jax/audit/SCALE.md",
    "l2rm_jax/devices/README.md",
    "l2rm_jax/models/pretrained/README.md",
    "l2rm_jax/ot/MEASURED.md",
)
BLOCK = re.compile(
    r"^<!-- table: (\S+?)(?:, ([^\n]+?))?(?:; without ([^\n]+?))? -->\n"
    r"(?:(?!<!-- table:).)*?^<!-- end table -->$",
    re.DOTALL | re.MULTILINE,
)


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    pages = options.pages or [ROOT / page for page in PAGES if (ROOT / page).exists()]
    outdated = []
    for page in pages:
        text = page.read_text()
        current = updated(text, page)
        if current == text:
            continue
        outdated.append(str(page))
        if not options.check:
            page.write_text(current)
    if options.check and outdated:
        sys.exit(
            f"out of date: {', '.join(outdated)}; run python -m experiments.pages.results_page"
        )


def updated(text: str, page: Path) -> str:
    """Return the text of a page with every table replaced by the current one.

    Raises:
      DataError: the marks do not come in pairs, or a CSV cannot be shown.
    """
    blocks = [match[1] for match in BLOCK.finditer(text)]
    if not len(blocks) == text.count("<!-- table:") == text.count("<!-- end table"):
        raise DataError(
            f"{page}: expected below each line <!-- table: results/NAME.csv --> a line "
            f"<!-- end table -->, found {len(blocks)} such pairs among "
            f"{text.count('<!-- table:')} and {text.count('<!-- end table')} marks"
        )
    return BLOCK.sub(
        lambda block: (
            f"{block[0].splitlines()[0]}\n\n"
            f"{_without(_table(EXPERIMENTS / block[1], block[2]), block[3])}\n\n"
            "<!-- end table -->"
        ),
        text,
    )


def _table(path: Path, title: str | None) -> str:
    if title is None:
        return markdown(path)
    from experiments.benchmark import page  # it imports JAX, which no other table needs

    return page.markdown_table(page.find_table(path, title))


def _without(table: str, names: str | None) -> str:
    rows = [line[2:-2].split(" | ") for line in table.splitlines()]
    left_out = set(names.split("/")) if names else set()
    if unknown := left_out - set(rows[0]):
        raise DataError(f"without: found {', '.join(sorted(unknown))}, expected of {rows[0]}")
    places = [place for place, name in enumerate(rows[0]) if name not in left_out]
    return "\n".join(f"| {' | '.join(row[place] for place in places)} |" for row in rows)


def markdown(path: Path) -> str:
    """Return a CSV as a Markdown table; columns of numbers are aligned to the right.

    Raises:
      DataError: the file is missing or empty, or a row has more or fewer cells than the first.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    if not rows:
        raise DataError(f"{path}: empty, expected a row of column names")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise DataError(f"{path}: row {number} has {len(row)} cells, expected {len(rows[0])}")
    names, *body = rows
    rules = ["--:" if _all_numbers(column) else "---" for column in zip(*body, strict=True)]
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (names, *body)]
    cells.insert(1, rules or ["---"] * len(names))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _all_numbers(cells: Sequence[str]) -> bool:
    """Whether each cell is a number, a dash or empty, and not all are empty."""
    number = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?|-|")
    return any(cells) and all(map(number.fullmatch, cells))


if __name__ == "__main__":
    start(main, prepare=False)
