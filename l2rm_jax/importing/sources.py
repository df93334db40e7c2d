"""Open the user's files of any kind as tables of rows.

This package reads text, so that each of its rows is accounted for. Hugging Face `datasets` reads
Parquet files, once, into Arrow files in a directory of the import, and the files of its
`save_to_disk`. Rows are memory-mapped: pictures that lie in a table or an archive take no memory.
"""

import logging
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from l2rm_jax.data.files import is_hidden, visible_files
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.errors import DataError, first_line, is_full, nearest_flag
from l2rm_jax.importing.delimited import Skipped, read_table
from l2rm_jax.importing.json_rows import is_cell, read_json
from l2rm_jax.importing.limits import check_size
from l2rm_jax.importing.samples import (
    TEXT_ENDINGS,
    find_pictures,
    find_samples,
    pair_texts,
    read_files,
    read_tar,
)
from l2rm_jax.importing.splits import NONE, SPLITS, split_number
from l2rm_jax.jobs.regular_files import check_regular

_log = logging.getLogger(__name__)

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".tar": "webdataset",
}
TEXTS = ("csv", "tsv", "json", "jsonl")  # kinds that are read as text
SAMPLES = ("webdataset", "files")  # kinds of which a row is a group of files
_STREAM_ENDS = (b"\xff\xff\xff\xff\0\0\0\0", b"ARROW1")  # of Arrow's streams, and of its files
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_EXPECTED = (
    "expected a .csv, .tsv, .txt, .json, .jsonl, .parquet or .tar file, a pattern of such files in "
    "quotes, a directory of them or of pictures, with texts or metadata.csv beside them or alone, "
    "or a data set that Hugging Face's save_to_disk wrote"
)


class Part(NamedTuple):
    """Rows of a source that belong together.

    Attributes:
      table: the rows.
      split: name of the split that file or directory names say; None if they say none.
      folder: directory, relative to the source's, that names of picture files start from.
    """

    table: pa.Table
    split: str | None
    folder: str = ""


class Source(NamedTuple):
    """The user's data, read.

    Attributes:
      path: path that the user named.
      kind: `csv`, `tsv`, `json`, `jsonl`, `parquet`, `webdataset`, `files`, `folder` or `saved`.
      base: directory in which picture files are looked up.
      parts: the rows, in order.
      skipped: rows, numbered from 1 over all parts, that could not be read at all.
      texts: the files that were read as text.
    """

    path: Path
    kind: str
    base: Path
    parts: tuple[Part, ...]
    skipped: Skipped
    texts: tuple[Path, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows, with those that could not be read."""
        return sum(len(part.table) for part in self.parts) + len(self.skipped)


def open_source(path: str | Path, cache: Path, columns: Sequence[str] = ()) -> Source:
    """Open a source of any kind.

    Args:
      path: file, directory or pattern of files.
      cache: directory for rows of Parquet files; an earlier reading of the same files is used.
      columns: columns that the user named, by which the separator of a table may be known.

    Raises:
      DataError: there is no such source, its kind is unknown, it holds no rows, or it is damaged.
    """
    path = Path(path)
    kind, files = find_files(path)
    base = path if path.is_dir() else files[0].parent
    try:
        kind, parts, skipped = _read(path, kind, files, base, cache, columns)
    except DataError:
        raise
    except Exception as error:  # of datasets, pyarrow or tarfile
        cause: BaseException = error
        while cause.__cause__ is not None:  # an error that the library wrapped
            cause = cause.__cause__
        if isinstance(cause, OSError) and is_full(cause):
            raise OSError(cause.errno, os.strerror(cause.errno), str(cache)) from error
        raise DataError(f"{path}: cannot be read as {kind} ({first_line(cause, 300)})") from error
    names = {part.split for part in parts}
    if len(names) < 2 or None in names:  # one name says nothing of how to split
        parts = [part._replace(split=None) for part in parts]
    texts = tuple(file for file in files if _SUFFIXES.get(file.suffix.lower()) in TEXTS)
    source = Source(path, kind, base, tuple(parts), skipped, () if kind in SAMPLES else texts)
    if not source.rows:
        raise DataError(f"{path}: holds no rows, expected at least one")
    return source


def find_files(path: Path) -> tuple[str, list[Path]]:
    """Kind of a source, and its files in order."""
    if path.is_dir():
        return _files_of_directory(path)
    files = [path] if path.is_file() else sorted(path.parent.glob(path.name))
    if not is_hidden(path.name):
        files = [file for file in files if not is_hidden(file.name)]
    for file in files:
        check_regular(file)
    if not files:
        hint = nearest_flag("source", path)
        raise DataError(f"{path}: no such file or directory, {_EXPECTED}", hint=hint)
    kinds = {_SUFFIXES.get(file.suffix.lower()) for file in files}
    if len(kinds) > 1 or None in kinds:
        raise DataError(f"{path}: a source of unknown kind, {_EXPECTED}")
    return kinds.pop(), files


def _files_of_directory(path: Path) -> tuple[str, list[Path]]:
    """Kind and files of a directory.

    Archives, and pictures with texts beside them, count before the tables that img2dataset writes
    next to them, which list the failed downloads as well.
    """
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return "saved", sorted(path.rglob("*.arrow"))
    files = visible_files(path)
    metadata = [file for file in files if file.name in _METADATA]
    if metadata:
        return "folder", metadata
    if samples := find_samples(files):
        return "files", samples
    tables = [file for file in files if file.suffix.lower() in _SUFFIXES]
    is_apart = all(file.suffix[1:].lower() in TEXT_ENDINGS for file in tables)
    if is_apart and (apart := pair_texts(files, path)):
        _log.info("%s is read as %s, and likewise others", *next(iter(apart.items())))
        return "files", [*find_pictures(files), *apart]
    for kind in ("webdataset", "parquet", "csv", "tsv", "json"):
        own = [file for file in tables if _SUFFIXES[file.suffix.lower()] == kind]
        if own:
            return kind, own
    if pictures := find_pictures(files):
        return "files", pictures
    raise DataError(
        f"{path}: found no table in this directory, {_EXPECTED}", hint=_import_of_arrays(files)
    )


def _import_of_arrays(files: Sequence[Path]) -> str | None:
    """Return a command for a directory with two arrays: the vectors of images, and of captions."""
    arrays = sorted((x for x in files if x.suffix == ".npy"), key=lambda x: "im" not in x.stem)
    if len(arrays) != 2:
        return None
    images, captions = (shlex.quote(str(file)) for file in arrays)
    return f"l2rm import --image_vectors={images} --caption_vectors={captions} --out=data/mine"


def _read(
    path: Path, kind: str, files: Sequence[Path], base: Path, cache: Path, columns: Sequence[str]
) -> tuple[str, list[Part], Skipped]:
    if kind == "saved":
        return kind, _read_saved(path), []
    if kind == "files":
        names = {} if find_samples(files) else pair_texts(files, base)
        return kind, [Part(read_files(files, base, names), None)], []
    parts: list[Part] = []
    skipped: Skipped = []
    start, own = 0, kind
    for file in files:
        own, table, left_out = _read_file(file, cache, columns)
        skipped += [(start + row, reason) for row, reason in left_out]
        start += len(table) + len(left_out)
        check_size(file if len(files) == 1 else path, table.num_columns, start)
        inner = file.relative_to(base)
        number = split_number(str(inner.with_suffix("")))
        split = None if number == NONE else SPLITS[number]
        has_folder = kind == "folder" and inner.parent != Path(".")
        parts.append(Part(table, split, f"{inner.parent}/" if has_folder else ""))
    return kind if kind == "folder" else own, parts, skipped


def _read_file(file: Path, cache: Path, columns: Sequence[str]) -> tuple[str, pa.Table, Skipped]:
    """The kind of a file, its rows, and those that could not be read."""
    match _SUFFIXES[file.suffix.lower()]:
        case "json":
            return read_json(file)
        case "webdataset" as kind:
            return kind, read_tar(file), []
        case "parquet" as kind:
            return kind, _read_parquet(file, cache), []
        case kind:
            return kind, *read_table(file, kind, columns)


def _read_saved(path: Path) -> list[Part]:
    for file in path.rglob("*.arrow"):
        _check_arrow(file)
    saved = _datasets().load_from_disk(_local_name(path))
    parts = saved.items() if isinstance(saved, dict) else [(None, saved)]
    return [Part(_stored_rows(rows), name) for name, rows in parts]


def _check_arrow(file: Path) -> None:
    """Check that a file of Arrow ends with the mark of its format.

    Raises:
      DataError: it does not; a stream that was cut between two blocks of rows reads like a whole.
    """
    with file.open("rb") as source:
        source.seek(max(0, file.stat().st_size - len(_STREAM_ENDS[0])))
        ending = source.read()
    if not ending.endswith(_STREAM_ENDS):
        raise DataError(
            f"{file}: found no mark at its end, expected that of Arrow's format: the file is cut; "
            "write or copy it again"
        )


def _read_parquet(file: Path, cache: Path) -> pa.Table:
    table = open_parquet(file)  # equal rows take hardly any bytes
    check_size(file, table.metadata.num_columns, table.metadata.num_rows)
    # The library takes the path as a pattern.
    pattern = re.sub(r"([\[\]*?])", r"[\1]", _local_name(file))
    try:
        rows = _datasets().Dataset.from_parquet(pattern, cache_dir=_local_name(cache))
        return _stored_rows(rows)
    except ValueError as error:
        if "corresponds to no data" in str(error):
            return pa.table({})
        raise


def _local_name(path: Path) -> str:
    """Return a path as datasets takes it; a relative one with a colon would be taken as a URI.

    Raises:
      DataError: the library would take it as a chain of file systems.
    """
    name = str(path.absolute())
    if "::" in name:
        raise DataError(f"{name}: found ::, which the library datasets cannot read, expected :")
    return name


def _datasets() -> Any:
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised, and told once
    return datasets


def _stored_rows(rows: Any) -> pa.Table:
    """The rows of a data set as Arrow stores them, memory-mapped; pictures stay encoded.

    Classes become their names.
    """
    if rows._indices is not None:  # rows that were selected or shuffled
        rows = rows.flatten_indices()
    table = rows.with_format("arrow")[:]
    for at, (name, feature) in enumerate(rows.features.items()):
        if isinstance(feature, _datasets().ClassLabel):
            number = table[name].combine_chunks()
            missing = pc.equal(number, -1)  # a class that is not known
            number = pc.if_else(missing, None, number)
            table = table.set_column(at, name, pa.array(feature.names).take(number))
    return _flat_table(table)


def _flat_table(table: pa.Table) -> pa.Table:
    """A table whose structs are columns `a.b`, but for those that are a caption or a picture."""
    columns: dict[str, pa.ChunkedArray] = {}
    waiting = [*zip(table.column_names, table.columns, strict=True)]
    while waiting:
        name, column = waiting.pop(0)
        fields = {f.name: True for f in column.type} if pa.types.is_struct(column.type) else {}
        if not fields or "bytes" in fields or is_cell(name.rpartition(".")[2], fields):
            columns[name] = column
        else:
            names = (f"{name}.{field}" for field in fields)
            waiting += zip(names, column.flatten(), strict=True)
    return pa.table(columns)
