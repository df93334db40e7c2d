"""Find and read photographs, and identify each by its name or its bytes."""

import hashlib
import itertools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from l2rm_jax.console import progress_bar
from l2rm_jax.data.files import is_hidden
from l2rm_jax.data.pictures import UnreadableError, read_picture
from l2rm_jax.errors import DataError
from l2rm_jax.importing.caption_cells import joined
from l2rm_jax.importing.column_names import (
    ADDRESSES,
    NUMBERED_PICTURE,
    PICTURE_ENDINGS,
    PICTURE_FIELDS,
    field_of,
)
from l2rm_jax.importing.columns import Columns, text_column
from l2rm_jax.importing.samples import Member
from l2rm_jax.importing.sources import Part, Source
from l2rm_jax.importing.table_pairs import places_of_rows
from l2rm_jax.importing.text_lists import parse_list

DIGEST_BYTES = 16
_SEARCHED = 1000  # directories that are read to find a file
_TRIED = 10  # names that are looked up to find the folder that they lose
_ABSOLUTE = r"^(?:/|[A-Za-z]:/)"
_LOCAL_FILES = r"^(?:https?://[^/]*)?/data/local-files/\?d="  # of Label Studio


class Pictures(NamedTuple):
    """The encoded pictures of a source, by image.

    Attributes:
      base: directory that names of files start from.
      names: [images] the user's name for each image.
      cells: [rows] the pictures, if a table or an archive holds them.
      row: [images] row of each image in `cells`.
      prefix: folder that names begin with and that lacks in `base` (`moved_prefix`).
    """

    base: Path
    names: pa.Array
    cells: pa.ChunkedArray | None = None
    row: np.ndarray | None = None
    prefix: str = ""

    def find(self, name: str) -> Path | None:
        """Find the file of a name, in whichever form of Unicode its disk has it."""
        places = [name, name.removeprefix(self.prefix)] if self.prefix else [name]
        for place in places:
            if os.path.isfile(self.base / place):
                return self.base / place
            if not place.isascii() and (path := _other_form(self.base, place)):
                return path
        return None

    def read(self, image: int) -> bytes:
        """The bytes of an image's picture.

        Raises:
          UnreadableError: there is no such file, or it cannot be read.
        """
        if self.cells is not None:
            content, name = picture_of(self.cells[int(self.row[image])].as_py())
            if content is not None:
                return content
        else:
            name = self.names[int(image)].as_py()
        path = None if _name_problem(name) else self.find(name)
        if path is None:
            raise UnreadableError(self.problem(name))
        try:
            return read_picture(path)
        except UnreadableError as error:
            raise UnreadableError(f"no file: {error}") from None

    def problem(self, name: str) -> str:
        """Say why there is no file of a name; "" if there is one."""
        return _name_problem(name) or ("" if self.find(name) else f"no file: {self.base / name}")


def _other_form(base: Path, name: str) -> Path | None:
    """The file of a name whose parts are on the disk in Unicode's form NFC or NFD."""
    for part in PurePosixPath(name).parts:
        forms = (part, normalize("NFC", part), normalize("NFD", part))
        base = next((base / form for form in forms if os.path.exists(base / form)), None)
        if base is None:
            return None
    return base if base.is_file() else None


def _name_problem(name: str) -> str:
    """Say why no file can have this name; "" if one can."""
    if name.startswith(ADDRESSES):
        return "no file: found a web address, expected a file on this machine"
    return "no file: its name holds a line break" if "\n" in name or "\r" in name else ""


def missing_files(source: Source, pictures: Pictures | None, images: np.ndarray) -> dict[int, str]:
    """Reason for each image without a file; empty if a table holds the pictures.

    Raises:
      DataError: none has one, so that names or directory are wrong.
    """
    if pictures is None or pictures.cells is not None:
        return {}
    numbers = np.unique(images)
    names = pictures.names.take(pa.array(numbers)).to_pylist()
    problems = map(pictures.problem, names)
    missing = {image: why for image, why in zip(numbers.tolist(), problems, strict=True) if why}
    if names and len(missing) == len(names):
        cause, hint = _likely_cause(names[0], pictures.base.absolute())
        raise DataError(
            f"{source.path}: none of its {len(names):,} pictures has a file; the first: "
            f"{missing[int(numbers[0])].removeprefix('no file: ')}; {cause}",
            hint=hint,
        )
    return missing


def _likely_cause(name: str, base: Path) -> tuple[str, str | None]:
    """Explain in a clause why there is no file of a name, and give a hint.

    It is looked for below the directory that names start from, and beside it.
    """
    if name.startswith(ADDRESSES):
        return "download the pictures first, with img2dataset for example", None
    found = _find_file(Path(name), base) or _find_file(Path(name), base.parent)
    if found is None:
        return f"names start from the directory {base}", "--pictures=DIR"
    if found.name != Path(name).name:
        return f"names lack the ending of the files ({found})", None
    if not str(found).endswith(f"/{name}"):
        return f"a file of this name is {found}", None
    folder = str(found).removesuffix(f"/{name}")
    return f"it is in {folder}", f"--pictures={shlex.quote(folder)}"


def _find_file(name: Path, folder: Path) -> Path | None:
    """A picture file below a directory whose name is the last part of `name`, or lacks its ending.

    At most `_SEARCHED` directories are read, and no hidden ones.
    """
    for path, folders, files in itertools.islice(os.walk(folder), _SEARCHED):
        folders[:] = [each for each in folders if not is_hidden(each)]
        for file in (name.name, *(f"{name.name}.{ending}" for ending in sorted(PICTURE_ENDINGS))):
            if file in files:
                return Path(path, file)
    return None


def moved_prefix(base: Path, names: pa.Array) -> str:
    """Find the folder of another machine that absolute names share and whose files are in `base`.

    All names lose the same folder, so that different ones stay different; "" if they have none.
    """
    absolute = names.filter(pc.match_substring_regex(names, _ABSOLUTE)).to_pylist()
    for name in absolute[:_TRIED]:
        parts = [] if os.path.isfile(base / name) else name.split("/")
        for length in range(1, len(parts)):
            prefix = "/".join(parts[:length]) + "/"
            if os.path.isfile(base / name.removeprefix(prefix)) and all(
                each.startswith(prefix) for each in absolute
            ):
                return prefix
    return ""


def image_keys(
    source: Source, columns: Columns, base: Path | None = None
) -> tuple[pa.Array, pa.ChunkedArray | None]:
    """Identify the image of each row by its name or the hash of its bytes.

    Args:
      source: the rows.
      columns: which columns to read.
      base: directory of the picture files; None if they are not read.

    Returns:
      The keys, null where a row has no picture; and the cells with the pictures, None if the image
      column holds names of files.
    """
    if not any(_holds_pictures(part, name) for part in source.parts for name in columns.image):
        return _name_keys(source, columns, base), None
    chunks: list[pa.Array] = []
    for part in source.parts:  # of several columns, in each row the first that is there
        found = [part.table[name] for name in columns.image if name in part.table.column_names]
        found = found or [pa.chunked_array([pa.nulls(len(part.table))])]
        chunks += (found[0] if len(found) == 1 else pc.coalesce(*found)).chunks  # one: no copy
    cells = pa.chunked_array(chunks)
    keys: list[str | None] = []
    with progress_bar(len(cells), "reading the source", unit="rows") as bar:
        for cell in cells:
            content, name = picture_of(cell.as_py())
            keys.append(name or None if content is None else digest_of(content).hex())
            bar.update(1)
    return pa.array(keys, pa.large_string()), cells


def _name_keys(source: Source, columns: Columns, base: Path | None) -> pa.Array:
    """The names of a column of text; null where it is empty."""
    keys = []
    for part in source.parts:
        names = text_column(part, columns.image[0])
        if columns.folder:
            slash = pa.scalar("/", names.type)
            names = pc.binary_join_element_wise(text_column(part, columns.folder), names, slash)
        names = _plain_names(pc.utf8_trim_whitespace(names))
        names = pc.if_else(pc.equal(pc.utf8_length(names), 0), None, names)
        if part.folder:
            folder, nothing = (pa.scalar(text, names.type) for text in (part.folder, ""))
            names = pc.binary_join_element_wise(folder, names, nothing)
        keys.append(names if base is None else _names_on_disk(names, base))
    return joined(keys)


def _plain_names(names: pa.Array) -> pa.Array:
    """Names without the number of a caption; of an object or a list, the name that it holds."""
    names = pc.replace_substring_regex(names, NUMBERED_PICTURE, r"\1")
    names = pc.replace_substring_regex(names, _LOCAL_FILES, "")
    is_value = pc.fill_null(pc.match_substring_regex(names, r"^[\[{].*[\]}]$"), False)
    if not pc.any(is_value).as_py():
        return names
    values = [picture_of(name)[1] for name in names.filter(is_value).to_pylist()]
    return pc.replace_with_mask(names, is_value, pa.array(values, names.type))


def _names_on_disk(names: pa.Array, base: Path) -> pa.Array:
    """Names with slashes for backslashes and in the form NFC, unless files differ in these."""
    is_odd = pc.or_(
        pc.match_substring(names, "\\"), pc.not_equal(names, pc.utf8_normalize(names, "NFC"))
    ).fill_null(False)
    if not pc.any(is_odd).as_py():
        return names
    values = []
    for name in names.filter(is_odd).to_pylist():
        plain = str(PurePosixPath(normalize("NFC", name.replace("\\", "/"))))
        has_file = os.path.isfile(base / name) and ("\\" in name or os.path.isfile(base / plain))
        values.append(name if has_file or name.startswith(ADDRESSES) else plain)
    return pc.replace_with_mask(names, is_odd, pa.array(values, names.type))


def _holds_pictures(part: Part, name: str) -> bool:
    if name not in part.table.column_names:
        return False
    kind = part.table.schema.field(name).type
    return pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def picture_of(value: Any) -> tuple[bytes | None, str]:
    """The bytes of a picture, None if a file has them, and the name of that file.

    Args:
      value: content of a cell: a name, bytes, a place in an archive, an object with the bytes or
        the name, a list of one of these, or nothing.
    """
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = parse_list(value)
        except ValueError:
            return None, value
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    if isinstance(value, bytes):
        return value, ""
    if not isinstance(value, dict):
        return None, "" if value is None else str(value)
    name = str(value.get(field_of(value, PICTURE_FIELDS)) or "")
    if value.get("size") is not None and value.get("file"):
        return Member(name, Path(value["file"]), value["start"], value["size"]).read(), name
    return value.get("bytes"), name


def name_cells(source: Source, cells: pa.ChunkedArray, first_row: np.ndarray) -> pa.Array:
    """Name each image whose picture lies in a table, as the table does (`distinct_names`)."""
    values = (cells[int(place)].as_py() for place in places_of_rows(source, first_row))
    # Without its size, a picture is not read from its archive.
    values = ({**each, "size": None} if isinstance(each, dict) else each for each in values)
    return distinct_names([picture_of(each)[1] for each in values], first_row)


def distinct_names(given: Sequence[str], rows: np.ndarray) -> pa.Array:
    """Names of images on one line; those that occur twice, and missing ones, get their row."""
    names, seen = [], set()
    for name, number in zip(given, rows, strict=True):
        name = " ".join((name or "").split())
        name = f"{name} (row {number})" if name and name in seen else name or f"row {number}"
        seen.add(name)
        names.append(name)
    return pa.array(names, pa.large_string())


def digest_of(content: bytes) -> bytes:
    """Hash of the bytes of a picture."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
