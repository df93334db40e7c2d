"""Open vectors in shards, as written by clip-retrieval or in columns of Parquet files.

    DIR/img_emb/img_emb_0.npy         [n, d] vectors of images
    DIR/text_emb/text_emb_0.npy       [n, e] vectors of their captions, one each
    DIR/metadata/metadata_0.parquet   the same rows: `caption`, and `image_path`, `key` or `url`

The files may also be in DIR itself. Alternatively, DIR/*.parquet hold both vectors in columns, next
to the names and captions. Rows are numbered across all shards, in the order of the numbers in the
file names.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data.files import check_form, is_hidden, open_array
from l2rm_jax.data.npy_files import still_whole
from l2rm_jax.data.parquet_vectors import copy_vectors, natural_order, open_parquet, vector_column
from l2rm_jax.data.same_names import number_variants
from l2rm_jax.errors import DataError, Problems

SIDES = IMAGES, CAPTIONS = "img_emb", "text_emb"
METADATA = "metadata"
CAPTION = "caption"  # columns of the metadata
DIGEST = "picture_digest"  # BLAKE2b hash of the bytes of the picture, in hexadecimal
_NAMES = "image_path", "key", "url"  # the first existing column names the images


class Shard(NamedTuple):
    """The vectors of one side in a shard.

    Attributes:
      name: the file, and its column if it has several.
      array: the vectors, memory-mapped.
    """

    name: str
    array: Float[np.ndarray, "n d"]


class Shards(NamedTuple):
    """Vectors of pairs, row by row, in several files.

    Attributes:
      images: the shards of the image vectors.
      captions: the shards of the caption vectors, each as long as its image shard.
      metadata: the Parquet file of each shard; empty without metadata.
      files: the files that hold the vectors; for Parquet, the original files and not their copies.
    """

    images: Sequence[Shard]
    captions: Sequence[Shard]
    metadata: Sequence[Path]
    files: Sequence[Path]


class ShardRows:
    """Rows of several arrays, read from their files on demand.

    Args:
      arrays: the arrays, in order.
      rows: selected rows; None: all.
    """

    def __init__(
        self,
        arrays: Sequence[Float[np.ndarray, "n d"]],
        rows: Int[np.ndarray, " taken"] | None = None,
    ):
        self._arrays, self._rows, self.dtype = list(arrays), rows, arrays[0].dtype
        self._ends = np.cumsum([len(array) for array in arrays])
        count = int(self._ends[-1]) if rows is None else len(rows)
        self.shape = count, arrays[0].shape[1]
        self.nbytes = count * arrays[0].shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m d"]:
        rows = at if self._rows is None else self._rows[at]
        shard = np.searchsorted(self._ends, rows, side="right")
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        for number in np.unique(shard):
            here, array = np.flatnonzero(shard == number), self._arrays[number]
            found[here] = still_whole(array)[rows[here] - (self._ends[number] - len(array))]
        return found


def rows_of(shards: Sequence[Shard], rows: Int[np.ndarray, " taken"] | None = None) -> ShardRows:
    """Return selected rows of the vectors of a side; None: all."""
    return ShardRows([shard.array for shard in shards], rows)


def are_shards(directory: str | Path) -> bool:
    """Whether a directory holds shards rather than the files of splits."""
    directory = Path(directory)
    return bool(_numbered(directory, IMAGES, "npy") or _tables(directory))


def have_vectors(directory: str | Path) -> bool:
    """Whether a directory has image vectors in shards, and not Parquet files with other content."""
    directory = Path(directory)
    if _numbered(directory, IMAGES, "npy"):
        return True
    tables = _tables(directory)
    return bool(tables) and vector_column(tables[0], IMAGES) is not None


def open_shards(directory: str | Path, copies: Path) -> Shards:
    """Open vectors in shards; they stay on disk.

    Args:
      directory: directory of the shards.
      copies: directory for memory-mapped copies of vectors in Parquet files, whose rows cannot be
        read one by one; existing copies of the same files are used.

    Raises:
      DataError: a shard or a column is missing, or has a wrong number of rows or dimensions; lists
        every problem.
      ConfigError: there are Parquet files, and the package pyarrow is missing.
    """
    directory, problems = Path(directory), Problems()
    files = {side: _numbered(directory, side, "npy") for side in SIDES}
    if not files[IMAGES]:
        tables = _tables(directory)
        copied = copy_vectors(tables, SIDES, copies)
        sides = [_alike(copied[side], problems) for side in SIDES]
        problems.raise_all()
        return Shards(*sides, metadata=tables, files=tables)
    metadata = _numbered(directory, METADATA, "parquet")
    for side, others in ((CAPTIONS, files[CAPTIONS]), (METADATA, metadata)):
        if side != METADATA or metadata:
            problems.attempt(_check_numbers, directory, side, others, files[IMAGES])
    problems.raise_all()
    images, captions = (
        _alike([(str(file), file) for file in files[side].values()], problems) for side in SIDES
    )
    problems.raise_all()
    for image, caption in zip(images, captions, strict=True):
        problems.attempt(_check_length, caption, image)
    for file, image in zip(metadata.values(), images, strict=bool(metadata)):
        problems.attempt(_check_rows, file, image)
    problems.raise_all()
    of_vectors = [file for side in SIDES for file in files[side].values()]
    return Shards(images, captions, tuple(metadata.values()), of_vectors)


def name_column(names: Sequence[str]) -> str | None:
    """Find the column of the metadata that names the images; None without one."""
    return next((each for each in _NAMES if each in names), None)


def metadata_files(directory: Path) -> list[Path]:
    """List the metadata files of vectors in `.npy` files, in the order of the shards."""
    return list(_numbered(directory, METADATA, "parquet").values())


def read_metadata(files: Sequence[Path], *, with_captions: bool = True) -> dict[str, list[Any]]:
    """Read caption, name and digest of each row, as far as the metadata has these columns.

    Args:
      files: the metadata of each shard; may be none.
      with_captions: whether to read captions.

    Returns:
      `[rows]` each, by the name of the column.

    Raises:
      DataError: as `common_columns`; or a row has no name or a caption that is not text; lists the
        first such row of each file.
      ConfigError: the package pyarrow is missing.
    """
    wanted = common_columns(files, {CAPTION, DIGEST} if with_captions else {DIGEST})
    problems = Problems()
    found: dict[str, list[Any]] = {name: [] for name in wanted}
    for file in files:
        columns = open_parquet(file).read(wanted)
        for name in wanted:
            values = columns[name].to_pylist()
            problems.attempt(_check_values, file, name, values)
            found[name] += values
    problems.raise_all()
    return found


def common_columns(files: Sequence[Path], wanted: Collection[str]) -> list[str]:
    """Return the columns with image names, and the columns in `wanted`, that the metadata have.

    Args:
      files: the metadata of each shard; may be none.
      wanted: names of columns.

    Raises:
      DataError: files differ in these columns; lists every problem.
      ConfigError: the package pyarrow is missing.
    """
    problems, first = [], None
    for file in files:
        names = open_parquet(file).schema_arrow.names
        own = [each for each in names if each in wanted or each == name_column(names)]
        first = own if first is None else first
        if lost := sorted(set(first) - set(own)):
            problems.append(f"{file}: no column {', '.join(lost)}")
        elif more := sorted(set(own) - set(first)):
            problems.append(
                f"{file}: found the column {', '.join(more)}, which {files[0].name} lacks"
            )
    if problems:
        raise DataError(*problems)
    return first or []


def _check_values(file: Path, column: str, values: Sequence[Any]) -> None:
    """Check that captions are texts, and that no name of an image is missing."""
    for row, value in enumerate(values):
        if column == CAPTION and not isinstance(value, str | None):
            raise DataError(f"{file}: {column}: row {row}: found {value!r:.80}, expected text")
        if column in _NAMES and value in (None, ""):
            raise DataError(f"{file}: {column}: row {row}: found no name, expected one")


def images_of_rows(
    columns: Mapping[str, Sequence[Any]], vectors: ShardRows
) -> tuple[list[str], Int[np.ndarray, " pairs"], Int[np.ndarray, " images"]]:
    """Find the rows that show the same image, by the columns that the metadata have.

    Without hashes of the pictures, these are the rows with the same name and the same vector.

    Args:
      columns: name and hash of each row, as far as the metadata have them (`read_metadata`).
      vectors: `[rows, d]` vectors of the images.

    Returns:
      The name of each image, the image of each row (numbered in the order of the rows), and the
      first row of each image.
    """
    name = name_column(list(columns))
    names = list(map(str, columns[name] if name else range(len(vectors))))
    digests = columns.get(DIGEST, [None] * len(names))
    keys = (digest or name for digest, name in zip(digests, names, strict=True))
    image_of = _numbered_keys(keys)
    if name:
        unhashed = np.where(np.array(digests, bool), -1, image_of)
        variant = number_variants(unhashed, vectors)
        image_of = _numbered_keys(zip(image_of.tolist(), variant.tolist(), strict=True))
    first = np.unique(image_of, return_index=True)[1]
    return [names[row] for row in first], image_of, first


def _numbered_keys(keys: Iterable[Hashable]) -> Int[np.ndarray, " rows"]:
    """Number keys in the order of their first appearance."""
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys])


def _check_length(caption: Shard, image: Shard) -> None:
    if len(image.array) != len(caption.array):
        raise DataError(
            f"{caption.name}: found {len(caption.array):,} rows, expected "
            f"{len(image.array):,}, as in {Path(image.name).name}"
        )


def _check_rows(file: Path, shard: Shard) -> None:
    rows = open_parquet(file).metadata.num_rows
    if rows != len(shard.array):
        raise DataError(f"{file}: found {rows:,} rows, expected {len(shard.array):,}, as vectors")


def _tables(directory: Path) -> list[Path]:
    """List the Parquet files of a directory without files of splits."""
    if any(directory.glob("*_ims.npy")) or any(directory.glob("*_pixels.npy")):
        return []
    files = (file for file in directory.glob("*.parquet") if not is_hidden(file.name))
    return sorted(files, key=natural_order)


def _numbered(directory: Path, name: str, ending: str) -> dict[int, Path]:
    """Map the numbers in file names to the files, in ascending order."""
    pattern = re.compile(rf"{name}_(\d+)\.{ending}")
    for folder in (directory / name, directory):
        found = [(pattern.fullmatch(file.name), file) for file in folder.glob(f"{name}_*.{ending}")]
        if numbered := sorted((int(match[1]), file) for match, file in found if match):
            return dict(numbered)
    return {}


def _check_numbers(
    directory: Path, name: str, files: dict[int, Path], images: dict[int, Path]
) -> None:
    if missing := sorted(images.keys() - files.keys()):
        raise DataError(
            f"{directory}: found no {name}_{missing[0]}, expected one for each of the "
            f"{len(images)} {IMAGES}_*.npy"
        )
    if more := sorted(files.keys() - images.keys()):
        raise DataError(f"{files[more[0]]} requires {IMAGES}_{more[0]}.npy, which does not exist")


def _alike(files: Sequence[tuple[str, Path]], problems: Problems) -> list[Shard]:
    """Open the shards of a side; all must have the dtype and dimensions of the first."""
    found: list[Shard] = []
    for name, file in files:
        array = problems.attempt(_mapped, name, file)
        if array is None:
            continue
        found.append(Shard(name, array))
        problems.attempt(_check_likeness, found[-1], found[0].array)
    return found


def _check_likeness(shard: Shard, first: np.ndarray) -> None:
    array = shard.array
    if (array.shape[1], array.dtype) != (first.shape[1], first.dtype):
        raise DataError(
            f"{shard.name}: found {array.dtype} [rows, {array.shape[1]}], expected "
            f"{first.dtype} [rows, {first.shape[1]}], as the shards before it"
        )


def _mapped(name: str, file: Path) -> np.ndarray:
    open_array(file)  # checks it
    array = np.load(file, mmap_mode="r", allow_pickle=False)  # a map, which Ray sends as its place
    is_valid = array.ndim == 2 and array.dtype.kind == "f" and 0 not in array.shape
    check_form(name, array, is_valid, "floats [rows, dimensions]")
    return array
