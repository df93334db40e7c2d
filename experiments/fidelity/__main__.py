"""Largest difference from the authors' code, file by file, as a Markdown table."""

import os
import sys
from pathlib import Path

from experiments.fidelity.parts import NOT_BUILT, compared_files, consume, unaccounted

GOLDEN = Path(os.environ.get("L2RM_GOLDEN") or Path(__file__).parents[2] / "tests" / "golden")


def main(directory: Path = GOLDEN) -> list[str]:
    """Prints the table; returns what is wrong, in words."""
    problems = unaccounted(directory)
    print("| file | quantity | largest error | tolerance |\n|---|---|---|---|")
    for path in compared_files(directory):
        found = consume(path)
        for quantity, error in found.errors.items():
            mark = " (!)" if quantity in found.outside else ""
            tolerance = found.tolerance[quantity]
            print(f"| {path.stem} | {quantity} | {error:.1e}{mark} | {tolerance:.0e} |", flush=True)
        problems += [f"{path}: {quantity} is outside its tolerance" for quantity in found.outside]
        problems += [f"{path}: nothing reads {key}" for key in found.unread]
    if NOT_BUILT:
        missing = ", ".join(f"{kind} ({why})" for kind, why in NOT_BUILT.items())
        print(f"\nNot compared yet: {missing}.")
    return problems


if __name__ == "__main__":
    problems = main()
    if problems:
        sys.exit("\n".join(problems))
