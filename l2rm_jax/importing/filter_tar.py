"""Copy the samples that an audit keeps to new archives, byte by byte.

A sample of a `.tar` file stays if one of its pairs is kept, with all its members and in its place.
Samples that the import rejected are left out; those of dev and test stay.
"""

import hashlib
import logging
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from l2rm_jax.console import progress_bar
from l2rm_jax.data.captions import read_image_ids
from l2rm_jax.data.content_hashes import hash_file
from l2rm_jax.data.files import file_states, open_array
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.record import DATASET_FILE, read_record, read_shards_record
from l2rm_jax.data.shards import (
    images_of_rows,
    metadata_files,
    open_shards,
    read_metadata,
    rows_of,
)
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError
from l2rm_jax.importing.samples import divide_samples, is_of_sample, read_members
from l2rm_jax.importing.sources import find_files
from l2rm_jax.importing.splits import rows_of_splits
from l2rm_jax.importing.writing import hash_source
from l2rm_jax.jobs import LOCAL, Executor, Job
from l2rm_jax.jobs.files import check_new, new_file
from l2rm_jax.jobs.regular_files import JSON, TEXT, has_file, parse_json, read_regular
from l2rm_jax.version import __version__

_log = logging.getLogger(__name__)

KEPT, IDS = "kept.npy", "kept_ids.txt"  # of an audit
_EXPECTED = "data that l2rm import wrote from .tar files"
_BLOCK = 1 << 20  # bytes that are copied at once
Rows = Int[np.ndarray, " rows"]


def filter_samples(
    data: str | Path, audit: str | Path, out: str | Path, executor: Executor = LOCAL
) -> dict[str, int]:
    """Write archives of the samples that an audit keeps; resume work that was stopped.

    Args:
      data: shards or a directory that `l2rm import` wrote from `.tar` files.
      audit: output directory of `l2rm audit` for these data.
      out: the new directory, with an archive for each of the source that has samples to keep.
      executor: copies the archives.

    Returns:
      Number of samples `read`, `written` and `left_out`, and of `archives` that were written.

    Raises:
      DataError: the audit is not of these data, or the archives are not those that were imported.
      ConfigError: the directory exists already, or other work for it is in progress.
    """
    data, audit, out = Path(data), Path(audit), Path(out)
    check_new(out, "directory")
    base, files, hashes, wanted = _samples_to_keep(data, audit, executor)
    samples = hashlib.blake2b(digest_size=16)
    for rows in wanted:
        samples.update(f"{len(rows)} ".encode() + rows.astype(np.int64).tobytes())
    identity = {"l2rm_jax": __version__, "files": file_states(files)}  # all that a copy depends on
    identity["samples"] = samples.hexdigest()
    job = Job(out, "filter")
    with job.locked():
        job.claim(identity)
        names = [job.partial / file.relative_to(base) for file in files]
        archives = zip(files, hashes, wanted, names, strict=True)
        calls = ((job, number, *archive) for number, archive in enumerate(archives))
        counts = Counter(dict.fromkeys(("read", "written", "left_out", "archives"), 0))
        with progress_bar(len(files), "copying", unit="archives") as bar:
            for one in executor.map(filter_archive, calls):
                counts.update(one)
                bar.update(1)
        job.finish()
    return dict(counts)


def describe_filtered(counts: dict[str, int], out: Path) -> str:
    """Summarise a copy in lines of text."""
    return (
        f"{out}: {counts['archives']:,} archives\n"
        f"samples: {counts['read']:,} read = {counts['written']:,} written + "
        f"{counts['left_out']:,} left out"
    )


def filter_archive(
    job: Job, number: int, source: Path, content: str, rows: Rows, out: Path
) -> dict[str, int]:
    """Copy some samples of an archive, unless that is done; returns how many.

    Args:
      job: the work.
      number: number of the archive.
      source: the archive.
      content: hash of the archive when it was imported.
      rows: numbers of the samples that stay, from 1, ascending; without any, nothing is written.
      out: the new archive.

    Raises:
      DataError: the archive has changed since then.
    """

    def copy() -> dict[str, int]:
        if hash_file(source) != content:
            raise DataError(
                f"{source}: found other content than when it was imported, expected the same "
                "archive; import it again, and audit that"
            )
        members, end = read_members(source)
        keys, numbers, _ = divide_samples([each.name for each in members if is_of_sample(each)])
        is_kept, sample = np.isin(np.arange(len(keys)), rows - 1), iter(numbers)
        stays = [not is_of_sample(member) or is_kept[next(sample)] for member in members]
        if len(rows):
            starts = [0, *(member.offset for member in members), end]  # global headers come first
            _copy_parts(source, out, starts, [True, *stays])
        counts = {"read": len(keys), "written": len(rows), "left_out": len(keys) - len(rows)}
        return counts | {"archives": int(len(rows) > 0)}

    return job.part(number, copy)


def count_samples(source: Path) -> int:
    """Number of samples of an archive."""
    members, _ = read_members(source)
    return len(divide_samples([each.name for each in members if is_of_sample(each)])[0])


def _copy_parts(source: Path, out: Path, starts: Sequence[int], stays: Sequence[bool]) -> None:
    """Copy the parts of an archive that stay; each ends where the next one starts."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)  # complete, but stopped before that was noted
    with new_file(out) as unfinished, source.open("rb") as read, unfinished.open("wb") as write:
        for start, end, is_kept in zip(starts, starts[1:], stays, strict=False):
            if is_kept:
                read.seek(start)
                for place in range(start, end, _BLOCK):
                    write.write(read.read(min(_BLOCK, end - place)))
        end = 2 * tarfile.BLOCKSIZE  # of zeros
        write.write(bytes(end + -(write.tell() + end) % tarfile.RECORDSIZE))


def _samples_to_keep(
    data: Path, audit: Path, executor: Executor
) -> tuple[Path, list[Path], list[str], list[Rows]]:
    """Find the samples to keep.

    Returns:
      Directory that the names of the archives start from; the archives; for each, the hash of its
      content at the import, and the numbers of its samples to keep, from 1, ascending.
    """
    of_shards, record = read_shards_record(data), read_record(data)
    kept = np.asarray(open_array(audit / KEPT))
    if of_shards:
        columns = read_metadata(metadata_files(data), with_captions=False)
        vectors = rows_of(open_shards(data, data / "vectors").images)
        ids, image, _ = images_of_rows(columns, vectors)
        _check_audit(audit, data, kept, ids, image)
        return _of_shards(data, kept)
    if record is None:
        raise DataError(f"{data}: no {DATASET_FILE}, expected {_EXPECTED}")
    image = np.asarray(open_array(split_file(data, "train", "image_of")))
    ids = read_image_ids(data, "train", int(image[-1]) + 1)
    _check_audit(audit, data, kept, ids, image)
    rows = rows_of_splits(data)
    stays = np.unique(np.concatenate([rows.pop("train")[kept], *rows.values()]))
    source = record["source"]
    if source["kind"] == "shards":
        if hash_source("shards", Path(source["path"])) != source["hashes"]:
            raise DataError(
                f"{source['path']}: found other shards than when {data} was imported from them, "
                "expected the same; import them again, and audit that"
            )
        return _of_shards(Path(source["path"]), stays - 1)
    base, files = _archives(source["path"])
    counts = list(executor.map(count_samples, ((file,) for file in files)))
    if sum(counts) != record["rows"]["read"] or len(files) != len(source["hashes"]):
        raise DataError(
            f"{source['path']}: found {sum(counts):,} samples, expected "
            f"{record['rows']['read']:,}, as when they were imported"
        )
    return base, files, source["hashes"], _divided(stays, counts)


def _check_audit(
    audit: Path, data: Path, kept: Rows, ids: Sequence[str], image: Int[np.ndarray, " pairs"]
) -> None:
    """Check that an audit is of these data, by the number and the names of its pairs."""
    report = parse_json(read_regular(audit / "report.json", JSON))
    if report["truth"] is not None:
        raise DataError(
            f"{audit}: found pairs that were mismatched deliberately, expected the data's"
        )
    if report["cannot_tell"]:
        _log.warning(
            "%s cannot tell which pairs are mismatched: samples that fit may be left out", audit
        )
    names = read_regular(audit / IDS, TEXT) if has_file(audit / IDS) else b""
    expected = "".join(f"{ids[row]}\n" for row in image[kept]).encode("utf-8", "replace")
    if report["inputs"]["pairs"] != len(image) or names != expected:
        raise DataError(
            f"{audit}: found an audit of {report['inputs']['name']}, with "
            f"{report['inputs']['pairs']:,} pairs, expected an audit of {data}, with "
            f"{len(image):,} pairs and the names of {len(kept):,} kept ones in {IDS}"
        )


def _archives(source: str) -> tuple[Path, list[Path]]:
    """The archives of a source, and the directory that their names start from."""
    path = Path(source)
    kind, files = find_files(path)
    if kind != "webdataset":
        raise DataError(f"{path}: found a source of the kind {kind}, expected .tar files")
    return path if path.is_dir() else files[0].parent, files


def _of_shards(shards: Path, rows: Rows) -> tuple[Path, list[Path], list[str], list[Rows]]:
    """The samples of some rows of shards, which say where each of them was read."""
    record = read_shards_record(shards)
    if record is None:
        raise DataError(f"{shards}: no {DATASET_FILE} of shards, expected {_EXPECTED}")
    base, files = _archives(record["source"]["path"])
    size = sum(file.stat().st_size for file in files)
    if len(files) != record["shards"] or size != record["source"]["bytes"]:
        raise DataError(
            f"{record['source']['path']}: found {len(files):,} archives of {size:,} bytes, "
            f"expected {record['shards']:,} of {record['source']['bytes']:,}, as when they were "
            "imported"
        )
    tables = [open_parquet(file) for file in metadata_files(shards)]
    places = _divided(rows + 1, [table.metadata.num_rows for table in tables])
    wanted = [
        np.unique(table.read(["row"])["row"].to_numpy()[own - 1])
        for table, own in zip(tables, places, strict=True)
    ]
    return base, files, record["source"]["hashes"], wanted


def _divided(rows: Rows, counts: Sequence[int]) -> list[Rows]:
    """Numbers from 1 over several files as numbers from 1 in each of them."""
    ends = np.cumsum(counts)
    parts = np.split(rows, np.searchsorted(rows, ends[:-1], side="right"))
    return [part - (end - count) for part, end, count in zip(parts, ends, counts, strict=True)]
