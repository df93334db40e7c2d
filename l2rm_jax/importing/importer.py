"""Import a source: read it, encode, split and write, then give the directory its name."""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.data.content_hashes import hash_file
from l2rm_jax.data.files import open_array
from l2rm_jax.data.record import BY_RUN, DATASET_FILE, write_record
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError
from l2rm_jax.importing import splits, writing
from l2rm_jax.importing.features import image_features, scan_vectors, write_caption_vectors
from l2rm_jax.importing.from_embeddings import plan_of_shards
from l2rm_jax.importing.pictures import missing_files
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.resolve import Plan, hash_pairs, read_plan
from l2rm_jax.importing.splits import NONE, SPLITS
from l2rm_jax.importing.table_pairs import TablePairs, reject_pairs
from l2rm_jax.pretrained.feature_encoder import PIXELS, Encoder
from l2rm_jax.version import __version__

_log = logging.getLogger(__name__)


def import_data(
    request: Request, load: Callable[[str, str | None], Encoder] | None = None
) -> dict[str, Any]:
    """Import the user's data into a new directory; an import that was stopped is continued.

    Flags, source and names of pictures are checked before the encoder is loaded; if they are wrong,
    nothing is written.

    Args:
      request: what to import.
      load: loads an encoder by its name and `--tokens`; None: `load_encoder`.

    Returns:
      The content of `dataset.json`.

    Raises:
      DataError: the source cannot be read, or too many rows are rejected.
      ConfigError: flags contradict each other or the source, or another import is in progress.
    """
    request.check()
    job = request.job
    with job.locked():
        rejected = Rejected(job.partial, request.max_rejected)
        read = plan_of_shards if request.has_shards else read_plan
        plan = read(request, job.work, rejected)
        if request.needs_captions and plan.is_gallery:
            raise DataError(
                f"{request.source}: found pictures without captions, expected captions",
                hint="--caption_column=NAME",
            )
        missing = missing_files(plan.source, plan.pictures, plan.pairs.image)
        job.check(_identity(request, plan))
        file = job.partial / DATASET_FILE  # of an import that lacked only its name when it stopped
        record = json.loads(file.read_bytes()) if file.exists() else None
        if record is None:  # else all was checked
            rejected.check(len(plan.pairs.row))
            # Now rather than after encoding the others.
            absent = Rejected(job.partial, request.max_rejected)
            lost = np.isin(plan.pairs.image, list(missing))
            reject_pairs(absent, plan.pairs, lost, missing)
            if missing:
                absent.check(int(np.count_nonzero(~lost)))
        encoder, described = None, plan.encoder
        if request.is_encoded:
            encoder = (load or load_encoder)(request.encoder, request.tokens or None)
            described = encoder.describe()
        identity = {**_identity(request, plan), "encoder": described}
        if record is not None and record["fingerprint"] != _fingerprint(identity):
            raise job.other_work("all is imported")
        if record is None:
            job.claim(identity)
            record = _write(request, plan, encoder, rejected, identity)
            write_record(job.partial, record)  # the last file: with it, only its name is missing
        job.finish()
    return record


def load_encoder(name: str, tokens: str | None) -> Encoder:
    """Load an encoder by its name and `--tokens` (`choose_encoder.make_encoder`)."""
    _log.info("loading the encoder %s", name)
    from l2rm_jax.run import choose_encoder  # takes seconds, and is not needed for vectors

    return choose_encoder.make_encoder(name, tokens)


def _identity(request: Request, plan: Plan) -> dict[str, Any]:
    """Everything but the encoder that the result depends on.

    An import in progress is continued only if its identity is the same.
    """
    arrays = {}
    for flag in ("image_vectors", "caption_vectors"):
        path = getattr(request, flag)
        state = os.stat(path) if path else None
        arrays[flag] = state and [os.path.abspath(path), state.st_size, state.st_mtime_ns]
    return {
        "source": os.path.abspath(request.source) if request.source else None,
        "columns": plan.columns and list(plan.columns),
        "pictures": os.path.abspath(request.pictures) if request.pictures else None,
        "rows": hash_pairs(plan.pairs),
        **arrays,
        **({"shards": plan.files} if plan.files else {}),
        "split": request.split,
        "seed": request.seed,
    }


def _fingerprint(identity: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


def _write(
    request: Request,
    plan: Plan,
    encoder: Encoder | None,
    rejected: Rejected,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """Encode, split and write all files but `dataset.json`, whose content is returned."""
    out, work, pairs = request.job.partial, request.job.work, plan.pairs
    hashes = plan.source and writing.hash_source(plan.source.kind, plan.source.path)
    images = image_features(plan, encoder, work, rejected)
    pairs = pairs.take(images.is_right[pairs.image])
    if plan.caption_vectors is not None:
        right = scan_vectors(plan.caption_vectors, "caption vectors", None)[pairs.caption]
        reject_pairs(rejected, pairs, ~right, "not finite: its caption vector")
        pairs = pairs.take(right)
    split, pairs, how = _split(request, images.digest, pairs, rejected, plan.is_gallery)
    rejected.check(len(pairs.row))
    rejected.write()
    rows = _count_rows(plan, pairs, rejected)
    layout = writing.make_layout(pairs, split)
    if not plan.is_gallery:
        _check_split_sizes(layout, request, how)

    used = images.digest[layout.image_split != NONE]
    in_pixels = bool(encoder) and (identity["encoder"].get("images") or {}).get("kind") == PIXELS
    files = [split_file(out, name, "pixels" if in_pixels else "features") for name in SPLITS]
    writing.write_rows(files, layout.image_split, layout.image_row, images.blocks)
    captions = write_caption_vectors(out, work, plan, encoder, pairs, layout)
    with_captions, pictures = not plan.is_gallery, plan.pictures
    has_files = pictures and (pictures.cells is None or plan.source.kind == "files")
    flags = {"with_rows": plan.source is not None, "with_captions": with_captions}
    writing.write_texts(out, pairs, images.digest, layout, **flags)
    if plan.columns:
        rows_by_split = [pairs.row[own] for own in layout.pairs]
        writing.write_columns(out, plan.source, names=plan.columns.further, rows=rows_by_split)
    return {
        "l2rm_jax": __version__,
        "fingerprint": _fingerprint(identity),
        "source": {
            "path": identity["source"],
            "kind": plan.source.kind if plan.source else "arrays",
            "bytes": os.path.getsize(request.source) if os.path.isfile(request.source) else None,
            "hashes": hashes,
            "pictures": str(pictures.base.resolve()) if has_files else None,
            "image_vectors": (identity["image_vectors"] or [None])[0],
            "caption_vectors": (identity["caption_vectors"] or [None])[0],
        },
        "columns": plan.columns and plan.columns._asdict(),
        "encoder": identity["encoder"],
        "split": how,
        "splits": {
            name: {"images": count, "captions": len(own) if with_captions else 0}
            for name, count, own in zip(SPLITS, layout.image_counts, layout.pairs, strict=True)
        },
        "images": _describe_array(files),
        "captions": {
            **captions,
            **_describe_array([split_file(out, n, "vectors") for n in SPLITS]),
        },
        "same_content": len(used) - len(np.unique(used, axis=0)),  # as earlier images
        "rows": rows,
        "rejected": rejected.reasons(),
        "converted": images.done,
        "files": {
            file.name: hash_file(file)
            for file in sorted(out.iterdir())
            if file.suffix in (".npy", ".txt", ".parquet")
        },
    }


def _count_rows(plan: Plan, pairs: TablePairs, rejected: Rejected) -> dict[str, int]:
    """Rows and captions that were read, pairs to write, and rejections; they must add up.

    Raises:
      DataError: a row became neither a pair nor a rejection, which is an error of this library.
    """
    total = plan.pairs.entries if plan.source is None else plan.source.rows
    seen = np.zeros(total + 1, bool)
    seen[pairs.row] = seen[list(rejected.rows())] = True
    lost, counts = (
        np.flatnonzero(~seen[1:]) + 1,
        (plan.pairs.entries, len(pairs.row), len(rejected)),
    )
    if plan.source is not None and len(lost):
        raise DataError(f"row {lost[0]}: neither written nor rejected, and {len(lost) - 1} more")
    if counts[0] != counts[1] + counts[2]:
        raise DataError("found {} captions, but {} pairs and {} rejections".format(*counts))
    return dict(zip(("read", "captions", "written", "rejected"), (total, *counts), strict=True))


def _split(
    request: Request,
    digest: np.ndarray,
    pairs: TablePairs,
    rejected: Rejected,
    is_gallery: bool,
) -> tuple[np.ndarray, TablePairs, dict[str, Any]]:
    """Split the images; return their splits, the remaining pairs and a record of the method.

    If neither a flag nor the source names a split, all images are the split train, from which runs
    draw theirs; a gallery is the split test.
    """
    if pairs.split is None and not (request.split or is_gallery):
        return np.zeros(len(digest), np.int64), pairs, BY_RUN
    if request.split or pairs.split is None:
        shares = splits.parse_shares(request.split) if request.split else splits.GALLERY
        used = np.unique(pairs.image)
        split = np.full(len(digest), NONE)
        split[used] = splits.split_by_shares(digest[used], shares, request.seed)
        return split, pairs, {"by": "shares", "shares": list(shares), "seed": request.seed}
    # The same picture under two names, in two splits: the first stays.
    used = np.unique(pairs.image)
    _, first, content = np.unique(
        np.ascontiguousarray(digest[used]).view("S16").ravel(),
        return_index=True,
        return_inverse=True,
    )
    original = used[first[content]]
    leaks = pairs.split[used] != pairs.split[original]
    bad = np.isin(pairs.image, used[leaks])
    reasons = {
        int(image): f"same picture: as {pairs.names[int(other)].as_py()}, which is in "
        f"{SPLITS[pairs.split[other]]}"
        for image, other in zip(used[leaks], original[leaks], strict=True)
    }
    reject_pairs(rejected, pairs, bad, reasons)
    return pairs.split, pairs.take(~bad), {"by": "source"}


def _check_split_sizes(layout: writing.Layout, request: Request, how: dict[str, Any]) -> None:
    wanted = [1, 0, 0] if how == BY_RUN else how.get("shares", [1, 1, 1])
    for name, count, share in zip(SPLITS, layout.image_counts, wanted, strict=True):
        if share and not count:
            raise DataError(
                f"{request.source or request.image_vectors}: found no image for the split {name}, "
                "expected some in train, dev and test",
                hint="--split=0.4,0.3,0.3",
            )


def _describe_array(files: list[Path]) -> dict[str, Any]:
    """Form of a file of pictures, or of features with their vectors per row; {} without a file."""
    file = next((file for file in files if file.exists()), None)
    if file is None:
        return {}
    array = open_array(file)
    if array.ndim == 4:
        return {"kind": PIXELS, "size": array.shape[1], "dtype": str(array.dtype)}
    sets = array.shape[1] if array.ndim == 3 else 1
    return {"vectors": sets, "dimensions": array.shape[-1], "dtype": str(array.dtype)}


def describe_import(record: dict[str, Any], out: Path) -> str:
    """Summarise an import and suggest the next commands, in lines of text."""
    sizes = record["splits"]
    total = {what: sum(size[what] for size in sizes.values()) for what in ("images", "captions")}
    parts = [f"{name} {size['images']:,}" for name, size in sizes.items() if size["images"]]
    lines = [
        f"{out}: {total['images']:,} images ({', '.join(parts)}), {total['captions']:,} captions"
    ]
    if record["rejected"]:
        reasons = ", ".join(f"{name} {count:,}" for name, count in record["rejected"].items())
        lines.append(f"rejected, see {out}/rejected.csv: {reasons}")
    if record["converted"]:
        what = ", ".join(f"{name} {count:,}" for name, count in record["converted"].items())
        lines.append(f"pictures that were converted: {what}")
    if record["captions"].get("cut"):
        lines.append(
            "captions that are too long for the encoder and lost their end: "
            f"{record['captions']['cut']:,}"
        )
    lines += _next_steps(record, out)
    rows = record["rows"]
    is_gallery = record["captions"]["kind"] == "none"
    more = f" with {rows['captions']:,} captions" if rows["captions"] != rows["read"] else ""
    lines.append(
        f"rows: {rows['read']:,} read{more} = {rows['written']:,} "
        f"{'images' if is_gallery else 'pairs'} written + {rows['rejected']:,} rejected"
    )
    return "\n".join(lines)


def _next_steps(record: dict[str, Any], out: Path) -> list[str]:
    """Commands that use the imported directory, a line each."""
    if record["captions"]["kind"] == "none":
        [split, *_] = [name for name, size in record["splits"].items() if size["images"]]
        place = out if split == "test" else f"{out}:{split}"
        return [f'search them: l2rm search --workdir=RUN --gallery={place} --query="..."']
    model = " --pretrained=DIR" if record["images"].get("kind") == PIXELS else ""
    sizes = {name: size["images"] for name, size in record["splits"].items()}
    audit = f"audit them:        l2rm audit --data={out}{model} --out=AUDIT"
    train = [
        f"check them:        l2rm check --data={out}{model}",
        f"train on them:     l2rm --data={out}{model}",
    ]
    if record["split"] == BY_RUN:
        return [train[0], f"{train[1]} (the run draws dev and test from train)", audit]
    if all(sizes.values()):
        return [*train, f"{audit} (train split; all pairs after an import without --split)"]
    return [audit] if sizes["train"] else []
