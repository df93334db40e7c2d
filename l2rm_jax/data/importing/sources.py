"""Open what the user has, of any kind, as tables of rows that Hugging Face `datasets` has read.

The library reads a source once and keeps its rows as Arrow files in a directory of the import, from
where they are memory-mapped: pictures that lie in a table or an archive take no memory.
"""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from l2rm_jax.data.files import replace_file
from l2rm_jax.data.importing.splits import split_in_name
from l2rm_jax.errors import DataError, first_line

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".tar": "webdataset",
}
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_EXPECTED = (
    "expected a .csv, .tsv, .jsonl, .parquet or .tar file, a pattern of such files in quotes, a "
    "directory with metadata.csv or .jsonl beside pictures, one of .parquet or .tar files, or a "
    "data set that Hugging Face's save_to_disk wrote"
)
_CHUNK = 100_000  # rows of a table that are read at once
_SAMPLED_MEMBERS = 1000  # members of the first archive whose names tell which fields there are
_STAMP = "read.json"  # written once a source has been read

Skipped = list[tuple[int, str]]  # rows that are not in the tables, from 1, and why


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
    """What the user has, read.

    Attributes:
      path: what the user named.
      kind: `csv`, `tsv`, `jsonl`, `parquet`, `webdataset`, `folder` or `saved`.
      base: directory that names of picture files start from.
      parts: the rows, in order.
      skipped: rows, numbered from 1 over all parts, that could not be read at all.
    """

    path: Path
    kind: str
    base: Path
    parts: tuple[Part, ...]
    skipped: Skipped


def open_source(path: str | Path, cache: Path) -> Source:
    """Open a source of any kind.

    Args:
      path: file, directory or pattern of files.
      cache: directory for the rows that were read; an earlier reading of the same files is used.

    Raises:
      DataError: there is no such source, its kind is unknown, or the library cannot read it.
    """
    path = Path(path)
    kind, files = _find_files(path)
    base = path if path.is_dir() else files[0].parent
    stamp = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    known = _read_stamp(cache / _STAMP)
    if known.get("files") != stamp:
        shutil.rmtree(cache, ignore_errors=True)
        known = {"files": stamp}
    try:
        parts, skipped = _read(path, kind, files, base, cache)
    except DataError:
        raise
    except Exception as error:  # of datasets, pandas or pyarrow
        cause = _first_cause(error)
        raise DataError(f"{path}: cannot be read as {kind} ({first_line(cause, 300)})") from error
    skipped = [tuple(each) for each in known.get("skipped", skipped)]
    replace_file(cache / _STAMP, json.dumps({"files": stamp, "skipped": skipped}).encode())
    names = {part.split for part in parts}
    if len(names) < 2 or None in names:  # one name says nothing of how to split
        parts = [part._replace(split=None) for part in parts]
    return Source(path, kind, base, tuple(parts), skipped)


def _read_stamp(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _first_cause(error: BaseException) -> BaseException:
    """The error that the library wrapped."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _find_files(path: Path) -> tuple[str, list[Path]]:
    """Kind of a source, and its files in order."""
    if path.is_dir():
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            return "saved", sorted(path.rglob("*.arrow"))
        metadata = sorted(file for name in _METADATA for file in path.rglob(name))
        if metadata:
            return "folder", metadata
        for kind, suffix in (("parquet", ".parquet"), ("webdataset", ".tar")):
            files = sorted(path.rglob(f"*{suffix}"))
            if files:
                return kind, files
        raise DataError(f"{path}: found no table in this directory, {_EXPECTED}")
    files = [path] if path.is_file() else sorted(path.parent.glob(path.name))
    if not files:
        raise DataError(f"{path}: no such file or directory, {_EXPECTED}")
    kinds = {_SUFFIXES.get(file.suffix.lower()) for file in files}
    if len(kinds) > 1 or None in kinds:
        raise DataError(f"{path}: a source of unknown kind, {_EXPECTED}")
    return kinds.pop(), files


def _read(
    path: Path, kind: str, files: Sequence[Path], base: Path, cache: Path
) -> tuple[list[Part], Skipped]:
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised, and told once
    if kind == "saved":
        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, datasets.Dataset):
            return [Part(_stored_rows(saved), None)], []
        return [Part(_stored_rows(rows), name) for name, rows in saved.items()], []
    parts: list[Part] = []
    skipped: Skipped = []
    start = 0
    for file in files:
        table, left_out = _READERS[_SUFFIXES[file.suffix.lower()]](file, cache)
        skipped += [(start + row, reason) for row, reason in left_out]
        start += len(table) + len(left_out)
        inner = file.relative_to(base)
        folder = "" if inner.parent == Path(".") else f"{inner.parent}/"
        is_folder = kind == "folder"
        parts.append(Part(table, split_in_name(str(inner)), folder if is_folder else ""))
    return parts, skipped


def _stored_rows(rows: Any) -> pa.Table:
    """The rows of a data set as Arrow stores them, memory-mapped; pictures stay encoded."""
    if rows._indices is not None:  # rows that were selected or shuffled
        rows = rows.flatten_indices()
    return rows.with_format("arrow")[:]


def _read_csv(file: Path, cache: Path, separator: str = ",") -> tuple[pa.Table, Skipped]:
    """Read a table with a header; text of any column stays as it is written.

    pandas, which reads for the library, is several times as fast where it may choose the types of
    columns. So it may at first; if a column turns out not to be text, the table is read again.
    """
    import datasets
    import pandas as pd

    settings = {
        "sep": separator,
        "index_col": False,
        "na_filter": False,
        "skip_blank_lines": False,
        "on_bad_lines": "warn",
    }
    lenient = {**settings, "encoding_errors": "replace"}
    names = [str(name) for name in pd.read_csv(file, nrows=0, **lenient).columns]
    # pandas takes the first row for the width of the table, whatever the header. If that row has
    # too many fields, the header must be read as the first row.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pd.read_csv(file, nrows=2, header=None, **lenient)
    is_text = not any("Skipping line 2:" in str(each.message) for each in caught)
    settings |= {"chunksize": _CHUNK, "writer_batch_size": _CHUNK}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if is_text:
            try:
                table = _load(datasets.Dataset.from_csv, file, cache, **settings)
                is_text = all(map(_is_text, table.schema.types))
            except datasets.exceptions.DatasetGenerationError:  # not UTF-8, or types that change
                is_text = False
        if not is_text:
            caught.clear()
            as_text = datasets.Features({name: datasets.Value("string") for name in names})
            lenient |= settings | {"features": as_text, "names": names, "header": None}
            table = _load(datasets.Dataset.from_csv, file, cache, **lenient)[1:]
    return table, _skipped_lines([str(each.message) for each in caught])


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)


def _skipped_lines(messages: Sequence[str]) -> Skipped:
    """Rows that pandas left out because they have too many fields, of its warnings."""
    lines = re.findall(r"Skipping line (\d+): (.*)", "\n".join(messages))
    return [(int(line) - 1, f"too many fields: {reason}") for line, reason in lines]


def _read_tsv(file: Path, cache: Path) -> tuple[pa.Table, Skipped]:
    return _read_csv(file, cache, separator="\t")


def _read_parquet(file: Path, cache: Path) -> tuple[pa.Table, Skipped]:
    import datasets

    return _load(datasets.Dataset.from_parquet, file, cache), []


def _read_jsonl(file: Path, cache: Path) -> tuple[pa.Table, Skipped]:
    """Read one JSON object a line; lists and other objects stay JSON."""
    import datasets

    lines = _load(datasets.Dataset.from_text, file, cache, encoding_errors="replace")
    rows: list[Mapping[str, Any]] = []
    skipped: Skipped = []
    for number, line in enumerate(lines["text"].to_pylist(), 1):
        try:
            row = json.loads(line.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            skipped.append((number, f"no JSON: {first_line(error, 200)}"))
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            skipped.append((number, f"no JSON object: found {type(row).__name__}"))
    return text_table(rows), skipped


def text_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table of text of JSON objects; the fields of an object in one are columns `a.b`."""
    flat = [dict(_flat_fields(row)) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return pa.table(
        {name: pa.array([row.get(name) for row in flat], pa.string()) for name in names}
    )


def _flat_fields(row: Mapping[str, Any], prefix: str = "") -> Any:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat_fields(value, f"{prefix}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            # Half of a surrogate pair is no character; a replacement character stands for it.
            pairs = text.encode("utf-16", "surrogatepass")
            yield f"{prefix}{name}", pairs.decode("utf-16", "replace")


def _read_tar(file: Path, cache: Path) -> tuple[pa.Table, Skipped]:
    """Read an archive of samples: files with the same name up to the first dot.

    The library refuses archives whose first samples have different fields, and text that is not
    UTF-8. So the fields are named beforehand, and text is decoded here.
    """
    import tarfile
    from itertools import islice

    import datasets
    from datasets.packaged_modules.webdataset.webdataset import WebDataset

    class Samples(WebDataset):
        """Reads the named fields of each sample, without decoding any."""

        DECODERS: dict = {}  # noqa: RUF012 - as its base has it

        def _generate_examples(self, *inputs: Any, **named: Any) -> Any:
            for key, sample in super()._generate_examples(*inputs, **named):
                yield key, {name: sample.get(name) for name in self.info.features}

    with tarfile.open(file) as archive:
        members = islice(archive, _SAMPLED_MEMBERS)
        endings = dict.fromkeys(
            member.name.rpartition("/")[2].partition(".")[2].lower()
            for member in members
            if member.isfile()
        )
    endings.pop("", None)
    pictures = [name for name in endings if name.rpartition(".")[2] in Samples.IMAGE_EXTENSIONS]
    texts = [name for name in endings if name in ("txt", "text", "caption", "json")]
    kinds = {"__key__": datasets.Value("string")}
    kinds |= {name: datasets.Image(decode=False) for name in pictures}
    kinds |= {name: datasets.Value("binary") for name in texts}
    builder = Samples(
        cache_dir=str(cache), data_files={"train": [str(file)]}, features=datasets.Features(kinds)
    )
    builder.download_and_prepare()
    table = _stored_rows(builder.as_dataset("train"))
    return _with_decoded_texts(table, texts), []


def _with_decoded_texts(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Replace columns of bytes by their text, and those of JSON by their fields `json.NAME`."""
    for name in names:
        cells = [cell and cell.decode("utf-8-sig", "replace") for cell in table[name].to_pylist()]
        table = table.drop_columns([name])
        if name == "json":
            fields = text_table([_json_object(cell) for cell in cells])
            for field in fields.column_names:
                table = table.append_column(f"json.{field}", fields[field])
        else:
            table = table.append_column(name, pa.array(cells, pa.string()))
    return table


def _json_object(text: str | None) -> Mapping[str, Any]:
    try:
        row = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _load(read: Callable[..., Any], file: Path, cache: Path, **settings: Any) -> pa.Table:
    try:
        return _stored_rows(read(_as_pattern(file), cache_dir=str(cache), **settings))
    except ValueError as error:
        if "corresponds to no data" in str(error):
            raise DataError(f"{file}: holds no rows, expected at least one") from error
        raise


def _as_pattern(file: Path) -> str:
    """The file's path, for a library that takes it as a pattern."""
    return re.sub(r"([\[\]*?])", r"[\1]", str(file.absolute()))


_READERS: dict[str, Callable[[Path, Path], tuple[pa.Table, Skipped]]] = {
    "csv": _read_csv,
    "tsv": _read_tsv,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "webdataset": _read_tar,
}
