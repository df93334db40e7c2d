"""Samples: files that differ in their endings alone, in a tar archive or a directory.

`000.jpg`, `000.txt` and `000.json` are one sample, as WebDataset and img2dataset write them.
Pictures stay where they are; only their places are kept.
"""

import json
import logging
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import pyarrow as pa

from l2rm_jax.data.captions import MAX_CHARACTERS
from l2rm_jax.data.files import is_hidden
from l2rm_jax.errors import DataError
from l2rm_jax.importing.column_names import PICTURE_ENDINGS
from l2rm_jax.importing.json_rows import text_table
from l2rm_jax.importing.limits import check_size

_log = logging.getLogger(__name__)

KEY = "__key__"  # the column with the name that the files of a sample share
TEXT_ENDINGS = ("txt", "text", "caption", "json")
_LONGEST = 4 * MAX_CHARACTERS + 4  # bytes of a text; longer captions are rejected anyway
_BLOCK = 1 << 20  # bytes read at once
_FEW = 3  # texts; fewer may be tables
_LOOKED_AT = 5  # texts that show whether they are tables of pictures
_LOOKED_BYTES = 4096  # of each
_PLACE = pa.struct(
    {"path": pa.string(), "file": pa.string(), "start": pa.int64(), "size": pa.int64()}
)


class Member(NamedTuple):
    """A file of an archive, or of a directory.

    Attributes:
      name: its name, with directories.
      file: the archive, or the file itself.
      start: where it begins in `file`.
      size: number of its bytes.
    """

    name: str
    file: Path
    start: int
    size: int

    def read(self, most: int = -1) -> bytes:
        """The first bytes of the file, all by default."""
        with self.file.open("rb") as source:
            source.seek(self.start)
            return source.read(self.size if most < 0 else min(most, self.size))


def read_tar(file: Path) -> pa.Table:
    """The samples of an archive; its members may come in any order.

    Raises:
      DataError: it is damaged, or cut.
    """
    members, _ = read_members(file)
    return _table(
        [
            Member(member.name, file, member.offset_data, member.size)
            for member in members
            if is_of_sample(member)
        ]
    )


def read_members(file: Path) -> tuple[list[tarfile.TarInfo], int]:
    """Read the headers of an archive, to its end.

    Returns:
      Its members, and the place where the last one ends.

    Raises:
      DataError: it is no archive, or it is damaged: `tarfile` itself takes a header that it cannot
        read for the end, and so loses the members after it.
    """
    members, end, size, is_zero, cut = [], 0, 0, True, ""
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                members.append(member)
                end = archive.offset
    except tarfile.TarError as error:
        cut = str(error)
    with file.open("rb") as source:
        source.seek(end)
        while is_zero and (block := source.read(_BLOCK)):
            size, is_zero = size + len(block), block.count(0) == len(block)
    if cut or not is_zero or size < 2 * tarfile.BLOCKSIZE:
        last = f"member {len(members):,}, {members[-1].name}" if members else "its start"
        found = cut or (f"{size:,} bytes of zeros" if is_zero else "other data")
        raise DataError(
            f"{file}: archive damaged after {last}: found {found} at byte {end:,}, expected two "
            "blocks of zeros and the end of the file; download or write it again"
        )
    return members, end


def is_of_sample(member: tarfile.TarInfo) -> bool:
    """Whether a member of an archive is a file of a sample."""
    return member.isfile() and not is_hidden(member.name)


def find_samples(files: Sequence[Path]) -> list[Path]:
    """Find the pictures with texts beside them, and these texts; empty if there are none.

    Texts of directories without pictures, such as img2dataset's statistics, are of no sample.

    Args:
      files: the files of a directory and those below it.
    """
    kinds = PICTURE_ENDINGS | set(TEXT_ENDINGS)
    files = [file for file in files if file.suffix[1:].lower() in kinds]
    endings = defaultdict(set)
    for file in files:
        endings[Path(normalize("NFC", str(file.with_suffix(""))))].add(file.suffix[1:].lower())
    if not any(own & PICTURE_ENDINGS and own - PICTURE_ENDINGS for own in endings.values()):
        return []
    folders = {stem.parent for stem, own in endings.items() if own & PICTURE_ENDINGS}
    return [file for file in files if Path(normalize("NFC", str(file.parent))) in folders]


def find_pictures(files: Sequence[Path]) -> list[Path]:
    """Find the picture files among others."""
    return [file for file in files if file.suffix[1:].lower() in PICTURE_ENDINGS]


def read_files(files: Sequence[Path], base: Path, names: Mapping[Path, str]) -> pa.Table:
    """The samples of files; names are those from `base` on, unless `names` gives others."""
    names = {file: str(file.relative_to(base)) for file in files} | dict(names)
    return _table([Member(names[file], file, 0, file.stat().st_size) for file in files])


def _table(members: Sequence[Member]) -> pa.Table:
    """One row for each sample, in the order of their first members; a column for each ending.

    Pictures become places. Texts are read, and JSON becomes columns `json.NAME`.
    """
    keys, numbers, endings = divide_samples([member.name for member in members])
    rows: list[dict[str, Member]] = [{} for _ in keys]
    for member, number, ending in zip(members, numbers, endings, strict=True):
        rows[number][ending] = member
    if sum(1 for _ in groupby(keys[number] for number in numbers)) > len(keys):
        _log.warning(
            "members of a sample should follow each other, for webdataset and others: "
            "tar --sort=name"
        )
    check_size(members[0].file if members else "samples", len(set(endings)))
    table = pa.table({KEY: pa.array(keys, pa.large_string())})
    for ending in dict.fromkeys(endings):
        own = [row.get(ending) for row in rows]
        kind = ending.rpartition(".")[2]
        if kind in PICTURE_ENDINGS:
            places = [each and (each.name, str(each.file), each.start, each.size) for each in own]
            table = table.append_column(ending, pa.array(places, _PLACE))
        elif kind == "json":
            fields = text_table([*map(_json_object, own)], members[0].file)
            for name in fields.column_names:
                table = table.append_column(f"{ending}.{name}", fields[name])
        elif ending:
            table = table.append_column(ending, pa.array(map(_text, own), pa.large_string()))
    return table


def divide_samples(names: Sequence[str]) -> tuple[list[str], list[int], list[str]]:
    """Find the samples that files belong to, by their names.

    Returns:
      [samples] the key of each sample, in the order of their first files; [files] the number of the
      sample of each file; [files] its ending.
    """
    divide = _find_division(names)
    samples: dict[tuple[str, int], int] = {}
    seen: Counter = Counter()
    numbers, endings = [], []
    for name in names:
        key, ending = divided = divide(normalize("NFC", name))
        # A second file of the same name belongs to a second sample.
        numbers.append(samples.setdefault((key, seen[divided]), len(samples)))
        endings.append(ending)
        seen[divided] += 1
    return [key for key, _ in samples], numbers, endings


def _find_division(names: Sequence[str]) -> Callable[[str], tuple[str, str]]:
    """Choose the division of names into key and ending that gives most samples with both kinds.

    WebDataset divides at the first dot, so that a sample may have `input.jpg` and `output.jpg`.
    Names of photographs have dots, too: then the last dot counts, or the last but one.
    """
    divisions = [partial(_divide_name, last_dots=dots) for dots in (0, 1, 2)]
    return max(divisions, key=lambda divide: _count_complete([*map(divide, names)]))


def _divide_name(name: str, last_dots: int) -> tuple[str, str]:
    """Divide a name at some of its last dots; 0: at the first one."""
    folder, slash, file = name.rpartition("/")
    key, *endings = file.rsplit(".", last_dots) if last_dots else file.split(".", 1)
    return f"{folder}{slash}{key}", ".".join(endings).lower()


def _count_complete(divided: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """Number of samples with a picture and another file; then the fewer endings, the better."""
    kinds = defaultdict(set)
    for key, ending in divided:
        kinds[key].add(ending.rpartition(".")[2] in PICTURE_ENDINGS)
    endings = {ending for _, ending in divided}
    return sum(len(own) == 2 for own in kinds.values()), -len(endings)


def _text(member: Member | None) -> str | None:
    return None if member is None else member.read(_LONGEST).decode("utf-8-sig", "replace")


def _json_object(member: Member | None) -> Mapping[str, Any]:
    try:
        row = json.loads(member.read().decode("utf-8-sig", "replace")) if member else {}
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def pair_texts(files: Sequence[Path], base: Path) -> dict[Path, str]:
    """Name each text like its picture: `captions/1_de.txt` becomes `images/1.txt`.

    A text belongs to the picture whose name is the same but for a beginning and an end that all
    pictures share, or all texts.

    Args:
      files: the files of a directory and those below it.
      base: the directory.

    Returns:
      New names, relative to `base`; empty unless most names agree.

    Raises:
      DataError: there are many texts, which are no tables, and their names do not agree.
    """
    pictures = find_pictures(files)
    texts = [file for file in files if file.suffix[1:].lower() in TEXT_ENDINGS]
    if not pictures:
        return {}
    picture_of = _cores(pictures, base)
    for ending in TEXT_ENDINGS:
        text_of = _cores([file for file in texts if file.suffix[1:].lower() == ending], base)
        both = [core for core in text_of if core in picture_of]
        if len(both) > 1 and 2 * len(both) > min(len(text_of), len(picture_of)):
            if left_out := len(texts) - len(both):
                _log.warning("%s: %d texts have no picture, and are not read", base, left_out)
            stems = {core: picture_of[core].relative_to(base).with_suffix("") for core in both}
            return {text_of[core]: f"{stems[core]}.{ending}" for core in both}
    if len(texts) >= _FEW and 2 * len(texts) >= len(pictures) and not _are_tables(texts):
        raise DataError(
            f"{base}: found {len(pictures):,} pictures and {len(texts):,} texts whose names do not "
            f"agree ({pictures[0].name} and {texts[0].name}), expected 1.jpg and 1.txt, or a table"
        )
    return {}


def _are_tables(texts: Sequence[Path]) -> bool:
    """Whether the first texts name pictures."""
    endings = [f".{ending}".encode() for ending in PICTURE_ENDINGS]
    heads = [Member("", file, 0, _LOOKED_BYTES).read().lower() for file in texts[:_LOOKED_AT]]
    return any(ending in head for ending in endings for head in heads)


def _cores(files: Sequence[Path], base: Path) -> dict[str, Path]:
    """Files by their names without what all share; empty if two have the same name."""
    names = [str(file.relative_to(base).with_suffix("")) for file in files]
    start = _shared_length(names)
    rests = [name[start:][::-1] for name in names]
    end = _shared_length(rests)
    files_by_core = {rest[end:]: file for rest, file in zip(rests, files, strict=True)}
    return files_by_core if len(files_by_core) == len(files) else {}


def _shared_length(names: Sequence[str]) -> int:
    """Length of the beginning that all names share and that ends within no word or number."""
    first, last = min(names, default=""), max(names, default="")
    length = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    while length and any(_is_one_word(name[length - 1 : length + 1]) for name in names):
        length -= 1
    return length


def _is_one_word(pair: str) -> bool:
    return len(pair) == 2 and (pair.isdigit() or pair.isalpha())
