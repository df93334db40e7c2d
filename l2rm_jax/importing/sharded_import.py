"""Import file by file: each file of the source becomes a shard of vectors.

The layout follows clip-retrieval, and `l2rm audit` reads it (`data/shards.py`). A finished shard is
never computed again; the import of an unfinished shard is resumed.
"""

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from l2rm_jax.console import progress_bar
from l2rm_jax.data.captions import read_captions, read_image_ids
from l2rm_jax.data.files import file_states, replace_array
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.record import DATASET_FILE, write_record
from l2rm_jax.data.shards import DIGEST
from l2rm_jax.data.split_files import split_file
from l2rm_jax.data.spreadsheet_cells import plain_cell
from l2rm_jax.errors import ConfigError, DataError, named_errors
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.rejected import FILE as REJECTED
from l2rm_jax.importing.rejected import Rejection, write_rows
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.sources import find_files
from l2rm_jax.jobs import LOCAL, SINGLE, Executor, Job, Share
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.pretrained.feature_encoder import Encoder
from l2rm_jax.version import __version__

SPLIT = "train"  # a shard has no splits
_NAMED = 5  # missing files that are named
LoadEncoder = Callable[[str, str | None], Encoder]


def import_sharded(
    request: Request, load_encoder: LoadEncoder, executor: Executor = LOCAL, share: Share = SINGLE
) -> dict[str, Any] | None:
    """Import each file of the source as a shard; an import that was stopped is continued.

    Several processes may each import a share of the files. The last process adds up all shards and
    gives the directory its name.

    Args:
      request: what to import. Its source has several files.
      load_encoder: loads an encoder by its name and `tokens`; a module-level function, as other
        processes call it, too.
      executor: computes the shards.
      share: the share of this process.

    Returns:
      The content of `dataset.json`: rows and rejections of all shards, added up; None if shards are
      missing, or another process is at work.

    Raises:
      DataError: a file cannot be read, or too many rows are rejected.
      ConfigError: flags contradict each other or the source, or another import is in progress.
    """
    request.check()
    if request.has_shards:
        raise ConfigError(f"--per_file: {request.source} has vectors in shards already")
    _, files = find_files(Path(request.source))
    if len(files) < 2:
        raise ConfigError(f"--per_file: {request.source} is one file, expected several, as shards")
    refused = {
        "--split": request.split,
        "--tokens": request.tokens,
        "--image_vectors": request.image_vectors,
        "--encoder=pixels": request.encoder.startswith("pixels:"),
    }
    if wrong := [name for name, value in refused.items() if value]:
        raise ConfigError(f"--per_file cannot be combined with {', '.join(wrong)}")
    job = request.job._replace(share=share)
    identity = {  # all that the shards depend on
        "l2rm_jax": __version__,
        "files": file_states(files),
        "pictures": request.pictures,
        "columns": [request.image_column, *request.caption_columns],
        "encoder": request.encoder,
    }
    with job.locked():
        job.claim(identity)
        own = range(share.number - 1, len(files), share.count)
        calls = ((job, number, str(files[number]), request, load_encoder) for number in own)
        with progress_bar(len(own), "importing", unit="files") as bar:
            for _ in executor.map(import_file, calls, on_gpu=True):
                bar.update(1)
    return job.reduce(len(files), lambda records: _write_record(request, files, records))


def import_file(
    job: Job, number: int, source: str, request: Request, load_encoder: LoadEncoder
) -> dict[str, Any]:
    """Import one file of a source as a shard, unless that is done; return its record."""
    place = job.work / f"{number:05}"
    # Picture files are looked up as in an import of all files at once.
    base = request.source if Path(request.source).is_dir() else Path(source).parent
    own = replace(
        request,
        source=source,
        out=place / "imported",
        pictures=request.pictures or str(base),
        split="1,0,0",
        max_rejected=1.0,
    )

    def write_shard() -> dict[str, Any]:
        if not own.out.exists():
            with named_errors(source):
                import_data(own, partial(_encoder, load_encoder))
        _write_shard(own.out, job.partial, number, source)
        return json.loads((own.out / DATASET_FILE).read_bytes())

    record = job.part(number, write_shard)
    shutil.rmtree(place, ignore_errors=True)  # it may be gone already
    return record


@lru_cache(maxsize=1)
def _encoder(load: LoadEncoder, name: str, tokens: str | None) -> Encoder:
    """The encoder, loaded once in a process."""
    return load(name, tokens)


def _write_shard(imported: Path, out: Path, number: int, source: str) -> None:
    """Write the arrays and the metadata of a shard, one row per pair."""
    images, captions = (
        np.load(split_file(imported, SPLIT, side), mmap_mode="r")
        for side in ("features", "vectors")
    )
    if images.ndim != 2:
        raise ConfigError(
            f"{source}: found {images.shape[1]} vectors per image, expected one for --per_file; "
            "choose another --encoder, or import without --per_file"
        )
    image = np.load(split_file(imported, SPLIT, "image_of"))
    for name, array in (("img_emb", images[image]), ("text_emb", np.array(captions))):
        replace_array(out / name / f"{name}_{number:05}.npy", array)
    names = np.array(read_image_ids(imported, SPLIT, len(images)), object)[image]
    digests = [each.tobytes().hex() for each in np.load(split_file(imported, SPLIT, "digests"))]
    columns = {
        "image_path": names.tolist(),
        "caption": read_captions(imported, SPLIT),
        "file": [Path(source).name] * len(image),
        "row": np.load(imported / f"{SPLIT}_rows.npy"),
        DIGEST: [digests[row] for row in image],
    }
    further = split_file(imported, SPLIT, "columns")
    if further.exists():
        table = open_parquet(further).read()
        names = [f"table_{name}" if name in columns else name for name in table.column_names]
        columns |= dict(zip(names, table.columns, strict=True))
    written = io.BytesIO()
    parquet.write_table(pa.table(columns), written)
    replace_file(out / "metadata" / f"metadata_{number:05}.parquet", written.getvalue())
    replace_file(out / "rejected" / f"{number:05}.csv", (imported / REJECTED).read_bytes())


def _write_record(
    request: Request, files: Sequence[Path], records: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Add up the records of all shards; write the sum and the list of all rejected rows.

    Raises:
      DataError: too many rows are rejected or their lists lack some, or shards have other encoders
        or dimensions.
    """
    first = records[0]
    for file, record in zip(files, records, strict=True):
        for part in ("encoder", "images"):
            if record[part] != first[part]:
                raise DataError(f"{file}: found {part} {record[part]}, expected {first[part]}")
    rows, rejected = Counter(), Counter()
    for record in records:
        rows.update(record["rows"])
        rejected.update(record["rejected"])
    further = dict.fromkeys(name for record in records for name in record["columns"]["further"])
    out = request.job.partial
    listed = [("file", *Rejection._fields)]
    for number, file in enumerate(files):
        with (out / "rejected" / f"{number:05}.csv").open(newline="", encoding="utf-8") as own:
            listed += [(plain_cell(file.name), *row) for row in [*csv.reader(own)][1:]]
    if len(listed) - 1 != rows["rejected"]:
        raise DataError(f"{out}: found {len(listed) - 1:,} rejected rows of {rows['rejected']:,}")
    write_rows(out / REJECTED, listed)
    if rows["rejected"] > request.max_rejected * rows["captions"]:
        raise DataError(
            f"{out / REJECTED}: {rows['rejected']:,} of {rows['captions']:,} rows are "
            f"rejected, expected at most {request.max_rejected:.3g} of them (--max_rejected)"
        )
    record = {
        "l2rm_jax": __version__,
        "source": {
            "path": str(Path(request.source).absolute()),
            "files": len(files),
            "bytes": sum(file.stat().st_size for file in files),
            "hashes": [record["source"]["hashes"][0] for record in records],
        },
        "encoder": first["encoder"],
        "columns": {**first["columns"], "further": [*further]},
        "shards": len(files),
        "rows": dict(rows),
        "rejected": dict(sorted(rejected.items())),
    }
    write_record(out, record)
    return record


def describe_unfinished(request: Request) -> str:
    """Say which shards are missing after a process has imported its share."""
    _, files = find_files(Path(request.source))
    if (request.out / DATASET_FILE).exists():
        return f"{request.out}: complete"
    missing = [files[number] for number in request.job.missing(len(files))]
    done = f"{request.job.partial}: {len(files) - len(missing):,} of {len(files):,} shards are done"
    if not missing:
        return f"{done}; another process is at work, and the last one closes the directory"
    names = ", ".join(file.name for file in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
    return f"{done}; missing: {names}{more}. The last process closes the directory"


def describe_shards(record: dict[str, Any], out: Path) -> str:
    """Summarise an import and suggest the next command, in lines of text."""
    rows = record["rows"]
    lines = [f"{out}: {rows['written']:,} pairs in {record['shards']:,} shards of vectors"]
    if record["rejected"]:
        reasons = ", ".join(f"{name} {count:,}" for name, count in record["rejected"].items())
        lines.append(f"rejected, see {out}/{REJECTED}: {reasons}")
    lines.append(f"audit them:        l2rm audit --data={out} --out=AUDIT")
    lines.append(
        f"rows: {rows['read']:,} read with {rows['captions']:,} captions = {rows['written']:,} "
        f"pairs written + {rows['rejected']:,} rejected"
    )
    return "\n".join(lines)
