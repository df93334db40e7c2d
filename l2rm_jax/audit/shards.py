"""Vectors in shards, as clip-retrieval writes them and LAION publishes them.

    DIR/img_emb/img_emb_0.npy         [n, d] vectors of images
    DIR/text_emb/text_emb_0.npy       [n, e] of their captions, one each
    DIR/metadata/metadata_0.parquet   the same rows: `caption`, and `image_path`, `key` or `url`

The files may also lie in DIR itself. Rows are numbered through all shards, which stand in the order
of their numbers. How rows are divided into shards changes nothing. Rows that name the same image
are captions of one, whose vector is that of the first.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.audit.inputs import Inputs, hash_names
from l2rm_jax.errors import ConfigError, DataError, Problems
from l2rm_jax.judging import Pairs
from l2rm_jax.linear.rows import TakenRows
from l2rm_jax.run.judged_pairs import rows_of_texts

SIDES = IMAGES, CAPTIONS = "img_emb", "text_emb"
_METADATA, _CAPTION = "metadata", "caption"
_NAMES = "image_path", "key", "url"  # the first that is there names the images
_BLOCK = 65_536  # rows that are read at once


class ShardRows:
    """The rows of several arrays, read from their files when they are asked for."""

    def __init__(self, arrays: list[Float[np.ndarray, "n d"]]):
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays])
        self.shape = int(self._ends[-1]), arrays[0].shape[1]

    def __getitem__(self, rows: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m d"]:
        shard = np.searchsorted(self._ends, rows, side="right")
        found = np.empty((len(rows), self.shape[1]), self._arrays[0].dtype)
        for number in np.unique(shard):
            here, array = np.flatnonzero(shard == number), self._arrays[number]
            found[here] = array[rows[here] - (self._ends[number] - len(array))]
        return found


def are_shards(directory: str | Path) -> bool:
    """Whether a directory has vectors in shards."""
    return bool(_files(Path(directory), IMAGES, "npy"))


def inputs_of_shards(directory: str | Path) -> Inputs:
    """Check vectors in shards and turn them into inputs; vectors stay on disk.

    Raises:
      DataError: a shard is missing, has another number of rows or of dimensions than it should, or
        a value that is not finite; lists every problem.
      ConfigError: there is metadata, and the package pyarrow is missing.
    """
    directory, problems = Path(directory), Problems()
    files = {side: _files(directory, side, "npy") for side in SIDES}
    metadata = _files(directory, _METADATA, "parquet")
    for side, others in ((CAPTIONS, files[CAPTIONS]), (_METADATA, metadata)):
        if side != _METADATA or metadata:
            problems.attempt(_check_numbers, directory, side, others, files[IMAGES])
    problems.raise_all()
    arrays = {side: _arrays(files[side], problems) for side in SIDES}
    problems.raise_all()
    for number, images, captions in zip(files[IMAGES], *arrays.values(), strict=True):
        if len(images) != len(captions):
            problems.attempt(
                _refuse,
                f"{files[CAPTIONS][number]}: found {len(captions):,} rows, expected "
                f"{len(images):,}, as {files[IMAGES][number].name} has",
            )
    problems.raise_all()
    digest = hashlib.blake2b(digest_size=16)
    for side in SIDES:
        digest.update(f"{arrays[side][0].dtype.str} {ShardRows(arrays[side]).shape}".encode())
        for file, array in zip(files[side].values(), arrays[side], strict=True):
            problems.attempt(_hash_shard, digest, file, array)
    problems.raise_all()
    lengths = [len(array) for array in arrays[IMAGES]]
    texts, ids = _read_metadata(metadata, lengths) if metadata else (None, None)
    images, captions = (ShardRows(arrays[side]) for side in SIDES)
    pair_image, first = _images_of(ids or list(map(str, range(images.shape[0]))))
    ids = [ids[row] for row in first] if ids else list(map(str, first))
    hash_names(digest, pair_image, texts, ids, None)
    if len(first) < len(pair_image):
        images = TakenRows(images, first)
    text_rows = texts and rows_of_texts(texts)
    return Inputs(
        name=str(directory),
        pair_image=pair_image,
        texts=texts,
        read_pairs=lambda: Pairs(images, captions, pair_image, text_rows, texts),
        ids=ids,
        caption_ids=None,
        pictures=None,
        truth=None,
        digest=digest.hexdigest(),
    )


def _images_of(
    names: Sequence[str],
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " images"]]:
    """The image of each row, counted in the order of the rows, and the first row of each image."""
    number: dict[str, int] = {}
    pair_image = np.array([number.setdefault(name, len(number)) for name in names])
    return pair_image, np.unique(pair_image, return_index=True)[1]


def _files(directory: Path, name: str, ending: str) -> dict[int, Path]:
    """Files by the numbers in their names, in their order."""
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
            f"{directory}: no {name}_{missing[0]}, expected one for each of {len(images)} "
            f"{IMAGES}_*.npy"
        )
    if more := sorted(files.keys() - images.keys()):
        raise DataError(f"{files[more[0]]}: found without an {IMAGES}_{more[0]}.npy")


def _arrays(files: dict[int, Path], problems: Problems) -> list[np.ndarray]:
    """The memory-mapped shards of a side, which must all be like the first."""
    found = []
    for file in files.values():
        array = problems.attempt(_mapped, file)
        if array is None:
            continue
        if found and (array.shape[1], array.dtype) != (found[0].shape[1], found[0].dtype):
            problems.attempt(
                _refuse,
                f"{file}: found {array.dtype} [rows, {array.shape[1]}], expected "
                f"{found[0].dtype} [rows, {found[0].shape[1]}], as the shards before it",
            )
        found.append(array)
    return found


def _refuse(message: str) -> None:
    raise DataError(message)


def _mapped(file: Path) -> np.ndarray:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: not an array of NumPy ({error})") from error
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise DataError(
            f"{file}: found {array.dtype} {list(array.shape)}, expected floats [rows, dimensions]"
        )
    return array


def _hash_shard(digest: "hashlib.blake2b", file: Path, array: np.ndarray) -> None:
    """Hash the values of a shard; lists every row that is not finite."""
    problems = []
    for start in range(0, len(array), _BLOCK):
        block = np.ascontiguousarray(array[start : start + _BLOCK])
        digest.update(block)
        wrong = np.flatnonzero(~np.isfinite(block).all(axis=1))
        problems += [f"{file}: row {start + row} is not finite" for row in wrong]
    if problems:
        raise DataError(*problems)


def _read_metadata(
    files: dict[int, Path], lengths: list[int]
) -> tuple[list[str] | None, list[str] | None]:
    """The captions, and the names of the images; None where no column has them."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f"{next(iter(files.values()))}: needs pyarrow, which is missing",
            hint="pip install pyarrow",
        ) from None
    texts, ids, problems = [], [], Problems()
    names = parquet.read_schema(next(iter(files.values()))).names
    name = next((each for each in _NAMES if each in names), None)
    wanted = [each for each in (_CAPTION, name) if each in names]
    for file, length in zip(files.values(), lengths, strict=True):
        if lost := set(wanted) - set(parquet.read_schema(file).names):
            problems.attempt(_refuse, f"{file}: no column {', '.join(sorted(lost))}")
            continue
        table = parquet.read_table(file, columns=wanted)
        if table.num_rows != length:
            problems.attempt(
                _refuse, f"{file}: found {table.num_rows:,} rows, expected {length:,}, as vectors"
            )
        if _CAPTION in wanted:
            texts += [text or "" for text in table[_CAPTION].to_pylist()]
        if name:
            ids += [str(each) for each in table[name].to_pylist()]
    problems.raise_all()
    return texts or None, ids or None
