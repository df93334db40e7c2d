"""Plan an import of vectors in shards into a data directory that runs train on.

The pairs are the same as in an audit of the shards. Images are dealt out to splits by the hash of
the picture, where the metadata have it, as in an import of the pictures themselves.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from l2rm_jax.data.columns import further_names
from l2rm_jax.data.files import file_states
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.record import read_shards_record
from l2rm_jax.data.same_names import number_variants
from l2rm_jax.data.shards import (
    CAPTION,
    DIGEST,
    Shards,
    common_columns,
    name_column,
    open_shards,
    rows_of,
)
from l2rm_jax.errors import DataError
from l2rm_jax.importing.caption_cells import joined
from l2rm_jax.importing.column_names import SPLIT_NAMES
from l2rm_jax.importing.columns import Columns, find_columns, text_column
from l2rm_jax.importing.pictures import DIGEST_BYTES, distinct_names
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.resolve import Plan
from l2rm_jax.importing.sources import Part, Source
from l2rm_jax.importing.table_pairs import TablePairs, read_pairs

_ROW = "row of the shards"  # the column that names images where the metadata do not


def plan_of_shards(request: Request, work: Path, rejected: Rejected) -> Plan:
    """Read metadata up to pairs; vectors stay where they are.

    Raises:
      DataError: as `open_shards`, or the metadata do not fit the vectors.
      ConfigError: a column that a flag names does not exist.
    """
    shards = open_shards(request.source, work / "vectors")
    source = _read_metadata(request, shards)
    columns = _columns(request, source)
    names = joined([text_column(part, columns.image[0]) for part in source.parts])
    names = pc.if_else(pc.equal(names, ""), None, names)  # "" names no image
    digests = _digests(source)
    keys = digests
    if keys is None:  # an image is a name with a vector; without a name there is none
        name = names.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
        variant = pa.array(number_variants(name, rows_of(shards.images))).cast(names.type)
        keys = pc.binary_join_element_wise(names, variant, pa.scalar("\n", names.type))
    if columns.captions:
        pairs = _pairs(source, columns, keys, names, rejected)
    else:
        pairs = _pairs_without_text(keys, names)
    first, record = pairs.first_row - 1, read_shards_record(request.source)
    if digests is not None:
        content = bytes.fromhex("".join(digests.take(pa.array(first)).to_pylist()))
        digests = np.frombuffer(content, np.uint8).reshape(-1, DIGEST_BYTES)
    states = json.dumps(file_states(shards.files)).encode()
    return Plan(
        pairs,
        source,
        columns if columns.captions else None,  # else the images would be a gallery
        pictures=None,
        image_vectors=rows_of(shards.images, first),
        caption_vectors=rows_of(shards.captions),
        digests=digests,
        files=hashlib.blake2b(states, digest_size=16).hexdigest(),
        encoder=record and record["encoder"],
    )


def _read_metadata(request: Request, shards: Shards) -> Source:
    """The rows of the metadata; each part has the columns that may be read, and further ones."""
    wanted = {CAPTION, DIGEST, *SPLIT_NAMES, request.image_column, *request.caption_columns}
    names = common_columns(shards.metadata, wanted)
    parts, start = [], 0
    for place, shard in enumerate(shards.images):
        columns, end = {}, start + len(shard.array)
        if shards.metadata:
            further = further_names(shards.metadata[place], {*names, CAPTION, DIGEST})
            table = open_parquet(shards.metadata[place]).read([*names, *further])
            columns = dict(zip(table.column_names, table.columns, strict=True))
        if name_column(list(columns)) is None:
            columns[_ROW] = pa.array(np.arange(start, end)).cast(pa.large_string())
        parts.append(Part(pa.table(columns), None))
        start = end
    path = Path(request.source)
    return Source(path, "shards", path, tuple(parts), [])


def _columns(request: Request, source: Source) -> Columns:
    """The columns to read; no captions where no column has them."""
    names = source.parts[0].table.column_names
    image = request.image_column or name_column(names) or _ROW
    captions = request.caption_columns or ((CAPTION,) if CAPTION in names else ())
    if not captions:
        return Columns((image,), (), None)
    return find_columns(source, image, captions, bool(request.split), is_encoded=False)


def _digests(source: Source) -> pa.Array | None:
    """The hash of the picture of each row, in hexadecimal; None if the metadata have none.

    Raises:
      DataError: a row has none, or it is of another kind.
    """
    if DIGEST not in source.parts[0].table.column_names:
        return None
    digests = joined([text_column(part, DIGEST) for part in source.parts])
    is_right = pc.match_substring_regex(digests, rf"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")
    is_right = is_right.fill_null(False).to_numpy(zero_copy_only=False)
    if len(wrong := np.flatnonzero(~is_right)):
        raise DataError(
            f"{source.path}: row {wrong[0] + 1}: found {digests[int(wrong[0])].as_py()!r} as "
            f"{DIGEST}, expected {2 * DIGEST_BYTES} hexadecimal digits"
        )
    return digests


def _pairs(
    source: Source, columns: Columns, keys: pa.Array, names: pa.Array, rejected: Rejected
) -> TablePairs:
    """The pairs of rows with captions, each of which has the vector of its row.

    Raises:
      DataError: a row has several captions.
    """
    pairs = read_pairs(
        source,
        columns,
        keys,
        rejected,
        lambda rows: distinct_names(names.take(pa.array(rows - 1)).to_pylist(), rows),
    )
    repeated = np.flatnonzero(np.diff(pairs.row) == 0)
    if len(repeated):
        raise DataError(
            f"{source.path}: row {pairs.row[repeated[0]]}: found several captions, expected one, "
            "as there is one vector"
        )
    return pairs._replace(caption=pairs.row - 1, caption_count=len(keys))


def _pairs_without_text(keys: pa.Array, names: pa.Array) -> TablePairs:
    """The pairs of rows of which there are vectors alone.

    Raises:
      DataError: a row names no image.
    """
    if keys.null_count:
        row = keys.is_null().to_pylist().index(True)
        raise DataError(f"row {row + 1} of the metadata: found no name of an image, expected one")
    image = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    first, rows = np.unique(image, return_index=True)[1] + 1, np.arange(len(keys))
    own = distinct_names(names.take(pa.array(first - 1)).to_pylist(), first)
    return TablePairs(rows + 1, image, rows, None, own, first, None, len(rows), len(rows))
