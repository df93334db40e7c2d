"""The table of an audit: one row per pair, as columns, a file or a DataFrame."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from l2rm_jax.audit.audit import Audit
from l2rm_jax.data.files import named_if_full
from l2rm_jax.data.layouts.precomp import CAPTION_ID
from l2rm_jax.errors import ConfigError, DataError, first_line
from l2rm_jax.judging.judgement import KINDS

if TYPE_CHECKING:
    import pandas

FILES = "pairs.parquet", "pairs.csv"  # without pyarrow, the second one
_BLOCK = 4096  # rows converted to text at once
_OWN = re.compile(
    "row|id|image|image_of|caption|fold|group|similarity|information|posterior(_set|_caption)?|fdr|"
    r"kind|none_fits|(proposal|probability)_\d+|mismatched_on_purpose|loss|loss_posterior|called|"
    "dropped|decision|decision_caption"
)


class Column(NamedTuple):
    """Column of text, integers, floats or booleans.

    Attributes:
      values: [rows] the values; an array of objects is text.
      known: [rows] whether each value is known; the other cells are empty.
    """

    values: np.ndarray
    known: Bool[np.ndarray, " rows"]


def pair_columns(audit: Audit) -> dict[str, Column]:
    """Return the columns of the table of pairs, in the order of the data.

    Columns of the user's table come first. One whose name is needed below has the prefix `table_`.
    """
    data, found, decisions = audit.pairs, audit.judgement, audit.decisions
    pairs = len(found)
    ids = data.columns.get(CAPTION_ID, np.array([*map(str, range(pairs))], object))
    columns = {
        "row": _filled(np.arange(pairs)),
        "id": _filled(ids),
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
        decided, taken = np.full(pairs, "", object), np.full(pairs, -1)
        decided[decisions.row], taken[decisions.row] = decisions.decision, decisions.caption
        columns["decision"] = Column(decided, decided != "")
        columns["decision_caption"] = Column(taken, taken >= 0)
    others = {name: _of_user(data.columns[name]) for name in data.columns if name != CAPTION_ID}
    named = {f"table_{name}" if _OWN.fullmatch(name) else name: others[name] for name in others}
    return named | columns


def frame(columns: Mapping[str, Column]) -> "pandas.DataFrame":
    """Return columns as a DataFrame; unknown cells are missing values.

    Raises:
      ConfigError: pandas is missing.
    """
    try:
        import pandas
    except ImportError:
        raise ConfigError("a DataFrame requires pandas: pip install pandas") from None

    def series(values: np.ndarray, known: np.ndarray) -> Any:
        if known.all() or values.dtype.kind == "f":
            return values
        if values.dtype == object:
            return np.where(known, values, None)
        return pandas.arrays.IntegerArray(values.astype(np.int64), ~known)

    return pandas.DataFrame({name: series(*column) for name, column in columns.items()})


def _of_user(values: np.ndarray) -> Column:
    """Make a column of the user's values; None and NaN are unknown."""
    known = values == values if values.dtype.kind == "f" else np.ones(len(values), bool)
    if values.dtype == object:
        known = np.array([value is not None and value == value for value in values])
        values = np.array([str(value) for value in values], object)
    return Column(
        values if values.dtype.kind in "biufO" else values.astype(str).astype(object), known
    )


def _filled(values: np.ndarray) -> Column:
    """Make a column without empty cells."""
    return Column(values, np.ones(len(values), bool))


def _numbers(values: np.ndarray) -> Column:
    """Make a column of numbers; NaN becomes an empty cell."""
    return Column(values, ~np.isnan(values))


def write_table(path: Path, columns: Mapping[str, Column]) -> None:
    """Write columns of equal length to a file whose name ends in `.csv` or `.parquet`.

    CSV is UTF-8 with a header; unknown cells are empty, numbers have six digits.
    """
    if path.suffix == ".parquet":
        with named_if_full(path):
            _write_parquet(path, columns)
        return
    rows = len(next(iter(columns.values())).known)
    with named_if_full(path), path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for start in range(0, rows, _BLOCK):
            block = slice(start, start + _BLOCK)
            writer.writerows(zip(*(_cells(x, block) for x in columns.values()), strict=True))


def _cells(column: Column, block: slice) -> list[str]:
    kind = column.values.dtype.kind
    write = {"b": lambda x: "true" if x else "false", "f": lambda x: f"{x:.6g}"}.get(kind, str)
    values = column.values[block].tolist(), column.known[block].tolist()
    return [write(x) if known else "" for x, known in zip(*values, strict=True)]


def _write_parquet(path: Path, columns: Mapping[str, Column]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {
        name: pyarrow.array(
            values, mask=~known, type=pyarrow.string() if values.dtype == object else None
        )
        for name, (values, known) in columns.items()
    }
    with path.open("wb") as file:  # a path may be taken as a URI
        pyarrow.parquet.write_table(pyarrow.table(arrays), file)


def read_table(directory: Path, pairs: int) -> dict[str, np.ndarray]:
    """Read the table of an audit's directory; the columns of a CSV are texts.

    Raises:
      DataError: there is no table, it is damaged, or it has another number of rows than `pairs`.
      ConfigError: it is a Parquet file, and pyarrow is missing.
    """
    files = [directory / name for name in FILES if (directory / name).is_file()]
    if not files:
        raise DataError(f"{directory}: found no {' or '.join(FILES)}, expected one of them")
    try:
        table = (_read_parquet if files[0].suffix == ".parquet" else _read_csv)(files[0])
    except (ValueError, OSError, csv.Error) as error:  # also pyarrow's errors of damaged content
        if isinstance(error, ConfigError):
            raise
        raise DataError(f"{files[0]}: cannot be read ({first_line(error, 200)})") from error
    if len(found := table.get("row", ())) != pairs:
        raise DataError(f"{files[0]}: found {len(found):,} rows, expected {pairs:,}")
    return table


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    csv.field_size_limit(2**31 - 1)  # characters of a caption
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    cells = np.array([[cell or None for cell in row] for row in rows], object)
    return dict(zip(header, cells.reshape(-1, len(header)).T, strict=True))


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{path}: reading this file requires pyarrow", hint="pip install pyarrow"
        ) from None
    with path.open("rb") as file:  # a path may be taken as a URI
        table = pyarrow.parquet.read_table(file)
    return {name: table[name].to_numpy() for name in table.column_names}


def columns_of_user(table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns of `read_table` that are the user's own."""
    return {name: values for name, values in table.items() if not _OWN.fullmatch(name)}
