"""Read the two sides of pairs from a table: a frame, a data set or a mapping of columns."""

import difflib
import hashlib
import mimetypes
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Num
from PIL import Image

from l2rm_jax.console import progress_bar
from l2rm_jax.data.frame_columns import MISSING, as_numpy, columns_of, further_columns
from l2rm_jax.data.pictures import (
    UnreadableError,
    open_picture,
    read_picture,
    upright_picture,
)
from l2rm_jax.errors import DataError, Problems

_BATCH = 256  # cells that a model encodes in one call
_NAMED = 10  # rows that a message names
_KINDS = {"image": ("a vector", "a picture", "a text"), "caption": ("a vector", "a text")}


class Sides(NamedTuple):
    """The pairs of a table. Equal image cells are one image, in order of first appearance.

    Attributes:
      images: the vectors of the distinct images, with the number type of the table or the model.
      captions: the vectors of the captions; None if only their texts are known.
      texts: [pairs] the captions as texts; None if only their vectors are known.
      image_of: row of `images` of each caption.
      ids: [images] the path or text of each image, else the first row of the table that has it.
      pictures: [images] paths, contents of files, or Pillow pictures; None if the images are
        vectors or texts.
      columns: name -> [pairs], the other columns of the table (`further_columns`). The pairs of a
        row with several captions repeat its values.
    """

    images: Num[np.ndarray, "images di"]
    captions: Num[np.ndarray, "pairs dc"] | None
    texts: list[str] | None
    image_of: Int[np.ndarray, " pairs"]
    ids: list[str]
    pictures: list[Path | bytes | Image.Image] | None
    columns: dict[str, np.ndarray]


def read_sides(table: Any, image: str, caption: str, model: Any = None) -> Sides:
    """Read the pairs of a table, and encode each side that has no vectors, if there is a model.

    Arguments as `Pairs.from_frame`. A cell of an image is a vector, a Pillow picture, the bytes of
    a picture, a dict {"bytes", "path"}, a path or a text. Texts are paths of pictures if most of
    them are files or end like pictures, `.jpg`; else the model receives them as they are.

    Raises:
      DataError: as `columns_of`; or a column does not exist, cells are missing, unreadable or of
        different kinds, images without vectors have no model, or a model does not return finite
        vectors. Lists the problems of both columns, or of the encoding of one.
    """
    columns, problems = columns_of(table), Problems()
    models = problems.attempt(_models, model=model)
    images = problems.attempt(_cells, columns, side="image", name=image)
    captions = problems.attempt(_cells, columns, side="caption", name=caption)
    problems.raise_all()
    first, image_of = _distinct(images)
    images = _with_paths([images[row] for row in first])
    lists = [cell if isinstance(cell, list) else [cell] for cell in captions]
    rows = np.repeat(np.arange(len(lists)), list(map(len, lists)))
    captions = [cell for cells in lists for cell in cells]
    others = further_columns({x: columns[x] for x in columns if x not in (image, caption)})
    return Sides(
        images=_vectors(f"image column {image!r}", images, rows=first, model=models[0]),
        captions=_vectors(f"caption column {caption!r}", captions, rows=rows, model=models[1]),
        texts=captions if isinstance(captions[0], str) else None,
        image_of=image_of[rows],
        ids=[_id(columns[image][row], row) for row in first],
        pictures=None if isinstance(images[0], np.ndarray | str) else images,
        columns={name: values[rows] for name, values in others.items()},
    )


def _id(stored: Any, row: int) -> str:
    name = stored.get("path") if isinstance(stored, Mapping) else stored
    return str(name) if isinstance(name, str | Path) else str(row)


def _cells(columns: Mapping[str, Any], side: str, name: str) -> list[Any]:
    """The cells of a column; raises `DataError` unless all are texts, pictures or vectors."""
    where = f"{side} column {name!r}"
    if name not in columns:
        near = difflib.get_close_matches(str(name), columns, n=1)
        nearest = f"; the nearest name is {near[0]!r}" if near else ""
        raise DataError(f"{where}: no such column, expected one of {', '.join(columns)}{nearest}")
    cells = [_cell(stored, side) for stored in columns[name]]
    counts = Counter(kind for kind, _ in cells if kind.startswith(_KINDS[side]))
    expected = max(counts, key=counts.__getitem__, default=" or ".join(_KINDS[side]))
    wrong = defaultdict(list)
    for row, (kind, _) in enumerate(cells):
        if kind != expected:
            wrong[f"found {kind}, expected {expected}"].append(row)
    _raise_rows(where, wrong)
    return [cell for _, cell in cells]


def _raise_rows(where: str, rows_of: Mapping[str, Sequence[int]]) -> None:
    """Raise one message per problem, with the first rows that have it, if any row has one."""
    messages = []
    for problem, rows in rows_of.items():
        named = f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:_NAMED]))}"
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        messages += [f"{where}: {named}{more}: {problem}"] * (len(rows) > 0)
    if messages:
        raise DataError(*messages)


def _cell(stored: Any, side: str) -> tuple[str, Any]:
    """The kind of a cell, as messages name it, and its value: texts, a picture or a vector."""
    if isinstance(stored, Mapping) and (stored.get("bytes") or stored.get("path")):
        stored = stored.get("bytes") or Path(stored["path"])
    if isinstance(stored, str):
        return ("a text", str(stored)) if stored.strip() else ("an empty text", None)
    if isinstance(stored, bytes | Path):
        return "a picture", stored
    if isinstance(stored, Image.Image):
        try:
            upright_picture(stored)
        except UnreadableError as error:
            return str(error), None
        return "a picture", stored
    is_list = isinstance(stored, list | tuple)
    if (is_list or getattr(stored, "ndim", 0) == 1) and len(stored) and isinstance(stored[0], str):
        if side == "image":
            return "a list of texts", None
        are_texts = all(isinstance(each, str) and each.strip() for each in stored)
        return ("a text", list(map(str, stored))) if are_texts else ("a list with a gap", None)
    if is_list or hasattr(stored, "__array__"):
        try:
            vector = as_numpy(stored)
        except ValueError:
            return "a list of uneven lists", None
        if vector.ndim == 1 and vector.size and _is_number(vector, "fiu"):
            return f"a vector of {len(vector)} numbers", vector
        if vector.ndim:
            return f"an array of {vector.dtype} {list(vector.shape)}", None
    found = str(stored)
    return found if found in MISSING else f"a value of type {type(stored).__name__}", None


def _is_number(array: np.ndarray, kinds: str) -> bool:
    return array.dtype.kind in kinds or array.dtype.name == "bfloat16"


def _models(model: Any) -> tuple[Any, ...]:
    models = tuple(model) if isinstance(model, tuple | list) else (model,)
    wrong = [each for each in models if isinstance(each, str) or not hasattr(each, "encode")]
    if len(models) not in (1, 2) or any(each is not None for each in wrong):
        found = " and ".join(type(each).__name__ for each in models)
        raise DataError(f"model: found {found}, expected an object with encode(list), or a pair")
    return models[0], models[-1]


def _distinct(cells: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """First row of each distinct cell, and for each cell the number of the distinct one."""
    numbers: dict[str | bytes, int] = {}
    number_of = np.array([numbers.setdefault(_key(cell), len(numbers)) for cell in cells])
    return np.unique(number_of, return_index=True)[1], number_of


def _key(cell: Any) -> str | bytes:
    """Text or path, or the hash of bytes, of pixels or of numbers."""
    if isinstance(cell, str | Path):
        return str(cell)
    if isinstance(cell, bytes):
        return hashlib.blake2b(cell, digest_size=16).digest()
    is_picture = isinstance(cell, Image.Image)
    about = (cell.size, cell.mode, cell.getpalette()) if is_picture else cell.dtype.str
    return hashlib.blake2b(repr(about).encode() + cell.tobytes(), digest_size=16).digest()


def _with_paths(images: list[Any]) -> list[Any]:
    """The images, with texts turned into paths if most of them name files or pictures."""
    if not isinstance(images[0], str):
        return images
    kinds = ("image" if os.path.isfile(x) else mimetypes.guess_type(x)[0] or "" for x in images)
    are_paths = 2 * sum(kind.startswith("image") for kind in kinds) > len(images)
    return list(map(Path, images)) if are_paths else images


def _vectors(
    where: str, cells: Sequence[Any], *, rows: Int[np.ndarray, " n"], model: Any
) -> Num[np.ndarray, "n d"] | None:
    """The cells as vectors, by a model unless they are; None for captions without a model."""
    if isinstance(cells[0], np.ndarray):
        vectors = np.stack(cells)
        return vectors.astype(np.float32) if vectors.dtype.kind in "iu" else vectors
    if model is None:
        if where.startswith("caption"):
            return None
        names = ((str, "texts"), (Path, "paths"), (object, "pictures"))
        found = next(name for kind, name in names if isinstance(cells[0], kind))
        raise DataError(f"{where}: found {found}, expected vectors or a model (model=...)")
    parts: list[np.ndarray] = []
    wrong: dict[str, list[int]] = defaultdict(list)
    with progress_bar(len(cells), f"encoding {where}", unit="cells") as bar:
        for start in range(0, len(cells), _BATCH):
            opened: list[Any] = []
            for row, cell in zip(rows[start:], cells[start : start + _BATCH], strict=False):
                try:
                    opened.append(_opened(cell))
                except UnreadableError as error:
                    wrong[str(error)].append(row)
            if not wrong:
                width = parts[0].shape[1] if parts else None
                parts.append(_encoded(where, opened, model=model, width=width))
            bar.update(len(opened))
    _raise_rows(where, wrong)
    vectors = np.concatenate(parts)
    bad = rows[~np.isfinite(vectors).all(axis=1)]
    problem = "found vectors with NaN or infinity, expected finite numbers"
    _raise_rows(f"{where}: model {type(model).__name__}", {problem: bad})
    return vectors


def _opened(cell: Any) -> str | Image.Image:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Image.Image):
        return upright_picture(cell)[0]
    if isinstance(cell, bytes):
        return open_picture(cell)[0]
    try:
        content = read_picture(cell)
    except UnreadableError as error:
        raise UnreadableError(f"{cell}: {error}") from None
    return open_picture(content)[0]


def _encoded(where: str, cells: list[Any], *, model: Any, width: int | None) -> np.ndarray:
    """One call of a model; raises `DataError` if it returns no vectors, or of another width."""
    encoded = model.encode(cells)
    try:
        vectors = as_numpy(encoded)
    except (TypeError, ValueError):
        vectors = np.asarray(None)
    shape = (len(cells), *([width] if width else vectors.shape[1:2]))
    if not _is_number(vectors, "f") or vectors.ndim != 2 or vectors.shape != shape:
        found = f"{vectors.dtype} {list(vectors.shape)}"
        raise DataError(
            f"{where}: model {type(model).__name__}: found {type(encoded).__name__} of {found}, "
            f"expected floats [{len(cells)}, {width or 'dimensions'}]"
        )
    return vectors
