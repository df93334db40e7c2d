"""The table of an audit: one row per pair, as columns, a file or a DataFrame."""

import contextlib
import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.review import Decisions
from l2rm_jax.data.columns import column_values
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.spreadsheet_cells import original_cell, plain_cell
from l2rm_jax.errors import ConfigError, DataError, first_line
from l2rm_jax.jobs.full_disk import named_if_full
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.judging.judgement import KINDS

if TYPE_CHECKING:
    import pandas

FILES = "pairs.parquet", "pairs.csv"  # without pyarrow, the second one
_BLOCK = 4096  # rows converted to text at once
_OWN = (
    "row|id|image|image_of|caption|fold|group|similarity|information|posterior(_set|_caption)?|fdr|p|likeness|"
    r"kind|none_fits|(proposal|probability)_\d+|mismatched_on_purpose|loss|loss_posterior|called|"
    "dropped|decision(_caption|_door)?"
)
_PREFIX = "table_"  # of a column of the user whose name is one of these, or starts with the prefix
_RENAMED = re.compile(f"({_PREFIX})*({_OWN})")


class Column(NamedTuple):
    """Column of text, integers, floats or booleans.

    Attributes:
      values: [rows] numbers, bools or dates; an array of objects is text.
      known: [rows] whether each value is known; the other cells are empty.
      is_exact: whether floats keep all their digits in text, for columns of the user.
    """

    values: np.ndarray
    known: Bool[np.ndarray, " rows"]
    is_exact: bool = False


def pair_columns(audit: Audit) -> dict[str, Column]:
    """Return the columns of the table of pairs, in the order of the data.

    Columns of the user's table come first. One whose name is needed below has the prefix `table_`.
    """
    data, found, decisions = audit.pairs, audit.judgement, audit.decisions
    pairs = len(found)
    columns = {
        "row": _filled(np.arange(pairs)),
        "id": _filled(np.array(data.caption_ids or [*map(str, range(pairs))], object)),
        "image": _filled(np.array(data.image_ids, object)[found.image_of]),
        "image_of": _filled(found.image_of),
        "caption": Column(np.full(pairs, "", object), np.zeros(pairs, bool))
        if data.texts is None
        else _filled(np.array(data.texts, object)),
        "fold": _filled(found.fold),
        "group": _filled(found.group),
        "similarity": _numbers(found.similarity),
        "information": _numbers(found.information),
        "posterior_set": _numbers(found.posterior_set),
        "posterior_caption": _numbers(found.posterior_caption),
        "posterior": _numbers(found.posterior),
        "fdr": _numbers(found.fdr),
        "p": _numbers(found.p),
        "likeness": _numbers(found.likeness),
        "kind": _filled(np.array(KINDS, object)[found.kind]),
        "none_fits": _numbers(found.none_fits),
    }
    for place in range(found.proposal.shape[1]):
        is_known = found.proposal[:, place] >= 0
        columns[f"proposal_{place + 1}"] = Column(found.proposal[:, place], is_known)
        columns[f"probability_{place + 1}"] = Column(found.probability[:, place], is_known)
    if audit.truth is not None:
        columns["mismatched_on_purpose"] = _filled(audit.truth)
    if audit.of_run is not None:
        columns |= {
            "loss": _numbers(audit.of_run.loss),
            "loss_posterior": _numbers(audit.of_run.loss_posterior),
            "called": Column(audit.of_run.called, audit.of_run.called != ""),
            "dropped": Column(audit.of_run.dropped, audit.of_run.dropped != ""),
        }
    if decisions is not None:
        decided, door, taken = *np.full((2, pairs), "", object), np.full(pairs, -1)
        decided[decisions.row], door[decisions.row] = decisions.decision, decisions.door
        taken[decisions.row] = decisions.caption
        columns["decision"] = Column(decided, decided != "")
        columns["decision_door"] = Column(door, door != "")
        columns["decision_caption"] = Column(taken, taken >= 0)
    return {_renamed(name): values for name, values in user_columns(data).items()} | columns


def user_columns(pairs: Pairs) -> dict[str, Column]:
    """Return the further columns of the user's table."""
    return {name: _of_user(values) for name, values in pairs.columns.items()}


def _renamed(name: str) -> str:
    return f"{_PREFIX}{name}" if _RENAMED.fullmatch(name) else name


def frame(columns: Mapping[str, Column]) -> "pandas.DataFrame":
    """Return columns as a DataFrame; unknown cells are missing values.

    Raises:
      ConfigError: pandas is missing.
    """
    try:
        import pandas
    except ImportError:
        raise ConfigError("a DataFrame requires pandas: pip install pandas") from None

    def series(values: np.ndarray, known: np.ndarray, _: bool) -> Any:
        if known.all() or values.dtype.kind in "fmM":
            return values
        if values.dtype == object:
            return np.where(known, values, None)
        return pandas.arrays.IntegerArray(values.astype(np.int64), ~known)

    return pandas.DataFrame({name: series(*column) for name, column in columns.items()})


def _of_user(values: np.ndarray) -> Column:
    """Make a column of the user's values; None, NaN and NaT are unknown."""
    if values.dtype.kind in "biuf":
        return Column(values, values == values, is_exact=True)
    if values.dtype != object:  # dates
        return Column(values, ~np.isnat(values))
    known = np.array([value is not None for value in values])
    if {type(value) for value in values[known]} == {int}:
        with contextlib.suppress(OverflowError):
            return Column(np.where(known, values, 0).astype(np.int64), known)
    return Column(np.array([str(value) for value in values], object), known)


def _filled(values: np.ndarray) -> Column:
    """Make a column without empty cells."""
    return Column(values, np.ones(len(values), bool))


def _numbers(values: np.ndarray) -> Column:
    """Make a column of numbers; NaN becomes an empty cell."""
    return Column(values, ~np.isnan(values))


def write_table(path: Path, columns: Mapping[str, Column]) -> None:
    """Write columns of equal length to a file whose name ends in `.csv` or `.parquet`.

    CSV is UTF-8 with a header; unknown cells are empty, our numbers have six digits.
    """
    if path.suffix == ".parquet":
        with named_if_full(path):
            _write_parquet(path, columns)
        return
    rows = len(next(iter(columns.values())).known)
    with named_if_full(path), path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(plain_cell, columns))
        for start in range(0, rows, _BLOCK):
            block = slice(start, start + _BLOCK)
            writer.writerows(zip(*(_cells(x, block) for x in columns.values()), strict=True))


def _cells(column: Column, block: slice) -> list[str]:
    kind = column.values.dtype.kind
    of_float = repr if column.is_exact else "{:.6g}".format
    write = {"b": lambda x: "true" if x else "false", "f": of_float}.get(kind, _text)
    values = column.values[block].astype(str) if kind in "mM" else column.values[block]
    cells = zip(values.tolist(), column.known[block].tolist(), strict=True)
    return [write(x) if known else "" for x, known in cells]


def _text(value: Any) -> str:
    return plain_cell(value) if isinstance(value, str) else str(value)


def _write_parquet(path: Path, columns: Mapping[str, Column]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {
        name: pyarrow.array(
            values, mask=~known, type=pyarrow.string() if values.dtype == object else None
        )
        for name, (values, known, _) in columns.items()
    }
    with path.open("wb") as file:  # a path may be taken as a URI
        pyarrow.parquet.write_table(pyarrow.table(arrays), file)


def read_table(directory: Path, pairs: int) -> dict[str, np.ndarray]:
    """Read the table of an audit's directory; the columns of a CSV are texts.

    Raises:
      DataError: there is no table, it is damaged, or it has another number of rows than `pairs`.
      ConfigError: it is a Parquet file, and pyarrow is missing.
    """
    files = [directory / name for name in FILES if has_file(directory / name)]
    if not files:
        raise DataError(f"{directory}: found no {' or '.join(FILES)}, expected one of them")
    try:
        table = (_read_parquet if files[0].suffix == ".parquet" else _read_csv)(files[0])
    except (ValueError, OSError, csv.Error) as error:  # also pyarrow's errors of damaged content
        if isinstance(error, ConfigError | DataError):
            raise
        raise DataError(f"{files[0]}: cannot be read ({first_line(error, 200)})") from error
    if len(found := table.get("row", ())) != pairs:
        raise DataError(f"{files[0]}: found {len(found):,} rows, expected {pairs:,}")
    return table


def decisions_of(table: Mapping[str, np.ndarray]) -> Decisions | None:
    """Return the decisions in the columns of `read_table`; None without these columns."""
    if "decision" not in table:
        return None
    rows = np.flatnonzero([cell is not None for cell in table["decision"]])
    taken = [cell if cell == cell else None for cell in table["decision_caption"][rows].tolist()]
    caption = np.array([-1 if cell is None else int(cell) for cell in taken], np.int64)
    doors, unknown = table["decision_door"][rows], np.full(len(rows), np.nan)
    return Decisions(rows, table["decision"][rows], caption, doors, unknown)


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    csv.field_size_limit(2**31 - 1)  # characters of a caption
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    cells = np.array([[original_cell(cell) or None for cell in row] for row in rows], object)
    return dict(zip(map(original_cell, header), cells.reshape(-1, len(header)).T, strict=True))


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    table = open_parquet(path).read()
    return {name: column_values(table[name]) for name in table.column_names}


def columns_of_user(table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns of `read_table` that are the user's own, under the user's names."""
    columns = {name: values for name, values in table.items() if not re.fullmatch(_OWN, name)}
    is_renamed = {name: _RENAMED.fullmatch(name) for name in columns}
    return {x.removeprefix(_PREFIX) if is_renamed[x] else x: columns[x] for x in columns}
