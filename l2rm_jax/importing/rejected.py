"""Count and list rejected rows with their reasons, and stop the import if there are too many."""

import csv
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from l2rm_jax.data.spreadsheet_cells import plain_cell
from l2rm_jax.errors import DataError
from l2rm_jax.jobs.files import replace_file

_SHOWN = 10  # kinds of reasons that the error shows
FILE = "rejected.csv"


class Rejection(NamedTuple):
    """A row that is left out.

    Attributes:
      row: number of the row in the source, from 1; the header of a table does not count.
      image: the image as the row names it; "" if it names none.
      reason: the problem, with the expected value if that is not obvious.
    """

    row: int
    image: str
    reason: str


class Rejected:
    """The rejections of an import so far.

    Args:
      directory: where `rejected.csv` is written.
      most: largest share of the rows that may be rejected.
    """

    def __init__(self, directory: Path, most: float):
        self._file, self.most = directory / FILE, most
        self._rejections: list[Rejection] = []

    def __len__(self) -> int:
        return len(self._rejections)

    def rows(self) -> set[int]:
        """Numbers of all rows with a rejection."""
        return {each.row for each in self._rejections}

    def add(self, row: int, image: str, reason: str) -> None:
        """Reject a row, or one of its captions."""
        self._rejections.append(Rejection(int(row), image, reason))

    def check(self, accepted: int) -> None:
        """End the import if too many rows are rejected, and write the list of them.

        Args:
          accepted: number of captions that have not been rejected.

        Raises:
          DataError: a larger share was rejected than is allowed, or everything.
        """
        count, total = len(self), len(self) + accepted
        if accepted and count <= self.most * total:
            return
        self.write()
        enough = min(1.0, count / total * 1.05 + 0.001)  # not less when it is rounded
        first: dict[str, Rejection] = {}
        for each in self._rejections:
            first.setdefault(_kind(each), each)
        lines = [
            f"{number:,} {kind}; the first is row {first[kind].row}: {first[kind].image}: "
            f"{first[kind].reason}"
            for kind, number in Counter(map(_kind, self._rejections)).most_common(_SHOWN)
        ]
        raise DataError(
            "\n  ".join(
                [
                    f"{self._file}: {count:,} of {total:,} rows are rejected, expected at most "
                    f"{self.most:.3g} of them (--max_rejected):",
                    *lines,
                ]
            ),
            hint=f"--max_rejected={enough:.2g}" if accepted else None,
        )

    def write(self) -> None:
        """Write the list, sorted."""
        self._rejections.sort()
        rows = ((each.row, *map(plain_cell, each[1:])) for each in self._rejections)
        write_rows(self._file, [Rejection._fields, *rows])

    def reasons(self) -> dict[str, int]:
        """Count the rejected rows by kind of reason, in alphabetical order."""
        return dict(sorted(Counter(map(_kind, self._rejections)).items()))


def write_rows(file: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a list of rejected rows, the header first; cells are not changed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    content = text.getvalue().replace("\0", "\ufffd")  # a NUL ends the text for some readers
    replace_file(file, content.encode("utf-8", "replace"))


def _kind(rejection: Rejection) -> str:
    """The kind of a reason, without its details."""
    return rejection.reason.partition(":")[0]
