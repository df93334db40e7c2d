"""Every test and every quantity that the page on differences cites exists."""

import csv
import re
from fnmatch import fnmatch

from experiments.pages.results_page import EXPERIMENTS, ROOT

TESTS = ROOT / "tests"
CITED = re.compile(r"`(\w+)(?:: ([^`]*))?`")  # `d_losses: losses, relative`


def cited_cells() -> list[str]:
    """The last cell, "tested by", of each row below the heading Differences."""
    page = (EXPERIMENTS / "README.md").read_text().split("## Differences")[1]
    return [line.split(" | ")[-1] for line in page.splitlines() if line.startswith("| ")]


def problems(cells: list[str]) -> list[str]:
    """Return the names that the cells cite and nothing has."""
    with (EXPERIMENTS / "results" / "fidelity.csv").open(newline="") as file:
        quantities = [(row["file"], row["quantity"]) for row in csv.DictReader(file)]
    missing = []
    for cell in cells:
        for name, cited in re.findall(r"`([\w/]+\.py)(?:: (\w+))?`", cell):
            file = TESTS / name
            if not file.is_file() or (cited and f"def {cited}(" not in file.read_text()):
                missing.append(f"{name}: {cited}")
        for kind, cited in CITED.findall(cell):
            names = [quantity for file, quantity in quantities if fnmatch(file, f"{kind}*")]
            if not names and not kind.startswith("test_"):
                missing.append(kind)
            for part in filter(None, cited.split("; ")):
                if not any(part.split(",")[0] in name for name in names):
                    missing.append(f"{kind}: {part}")
    return missing


def test_what_the_page_cites_exists():
    cells = cited_cells()
    assert len(cells) > 50 and problems(cells) == []
