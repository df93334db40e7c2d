"""Print the largest differences from the authors' code, file by file, as a Markdown table."""

import os
import sys
from pathlib import Path

from tests.golden.fidelity.comparing import compare, compared_files, kind_of, mismatched_files
from tests.golden.fidelity.parts import NOT_BUILT

GOLDEN = Path(os.environ.get("L2RM_GOLDEN") or Path(__file__).parents[1])


def main(directory: Path = GOLDEN) -> list[str]:
    """Print the table and return the problems, one sentence each."""
    problems = mismatched_files(directory)
    unused: dict[str, set[str]] = {}  # quantities by the kind of file
    print("| file | quantity | largest error | tolerance |\n|---|---|---|---|")
    for path in compared_files(directory):
        comparison = compare(path)
        unused.setdefault(kind_of(path), set(comparison.tolerance))
        unused[kind_of(path)] -= comparison.errors.keys()
        for quantity, error in comparison.errors.items():
            mark = " (!)" if quantity in comparison.outside else ""
            tolerance = comparison.tolerance[quantity]
            print(f"| {path.stem} | {quantity} | {error:.1e}{mark} | {tolerance:.0e} |", flush=True)
        problems += [f"{path}: {name} is outside its tolerance" for name in comparison.outside]
        problems += [f"{path}: nothing reads {key}" for key in comparison.unread]
    problems += [f"{kind}: no file has {name}" for kind in unused for name in unused[kind]]
    if NOT_BUILT:
        missing = ", ".join(f"{kind} ({why})" for kind, why in NOT_BUILT.items())
        print(f"\nNot compared yet: {missing}.")
    return problems


if __name__ == "__main__":
    problems = main()
    if problems:
        sys.exit("\n".join(problems))
