"""Text files as lines, whatever their encoding and their ends of lines."""

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from l2rm_jax.errors import DataError
from l2rm_jax.jobs.regular_files import check_regular

_SAMPLE = 1 << 20  # bytes that show the ends of lines
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_SEPARATOR = r'\ufeff?"?(?i:sep)=([^\w"\r\n])(?:\1| )*"?'  # maybe with empty fields after it
_NOT_GUESSED = ["utf_7", "utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be"]
_ESCAPED = range(0xDC80, 0xDD00)  # what `surrogateescape` makes of a byte that is not UTF-8


class TextFile(NamedTuple):
    """A text file. Lines end as its first megabyte says: by `\\n`, or by `\\r` if it has no `\\n`.

    Attributes:
      path: the file.
      encoding: UTF-8, or UTF-16 if the file begins with its mark.
      newline: the end of a line.
      mark: the bytes before the content, which mark the encoding or name the separator.
      separator: the separator that a first line such as `sep=;` names, for Excel; "" without one.
    """

    path: Path
    encoding: str
    newline: str
    mark: bytes
    separator: str = ""

    def lines(self) -> Iterator[str]:
        """The lines with their ends, without the mark; other bytes become half surrogates."""
        with self.path.open(
            encoding=self.encoding, errors=self._errors, newline=self.newline
        ) as file:
            if self.separator:
                next(file)
            for number, line in enumerate(file):
                yield line if number else line.removeprefix("\ufeff")

    def encode(self, text: str) -> bytes:
        """The bytes of a text of this file."""
        return text.encode(self.encoding, self._errors)

    @property
    def _errors(self) -> str:
        return "surrogateescape" if self.encoding == "utf-8" else "replace"


def open_text(path: Path) -> TextFile:
    """Find out how a text file is to be read.

    Raises:
      DataError: it is no regular file, or compressed.
    """
    check_regular(path)
    with path.open("rb") as file:
        sample = file.read(_SAMPLE)
    if sample.startswith(_COMPRESSED):
        raise DataError(f"{path}: found a compressed file, expected text; unpack it first")
    mark = next((mark for mark in _MARKS if sample.startswith(mark)), b"")
    encoding = _MARKS.get(mark, "utf-8")
    for first, name in enumerate(("utf-16-be", "utf-16-le")):  # without its mark: every other is 0
        if sample[first::2].count(0) > len(sample) / 4:
            encoding = name
    has_only_cr = "\n" not in (text := sample.decode(encoding, "replace")) and "\r" in text
    newline = "\r" if has_only_cr else "\n"
    if found := re.match(rf"{_SEPARATOR}\r?(?:{newline}|$)", text):
        return TextFile(path, encoding, newline, found[0].encode(encoding), found[1])
    return TextFile(path, encoding, newline, mark)


def as_unicode(text: str) -> str:
    """A text in which a replacement character stands for each part that is no character."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        # Two halves that belong together are one character, as in JSON's \\ud83d\\udc36.
        escaped = "".join("\ufffd" if ord(each) in _ESCAPED else each for each in text)
        return escaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def guess_encoding(files: Sequence[Path]) -> str | None:
    """The likely encoding of the first file that is not UTF-8; None if all are."""
    for path in files:
        broken = bytearray()
        with path.open("rb") as file:
            for line in file:
                try:
                    line.decode()
                except UnicodeDecodeError:
                    broken += line
                if len(broken) > _SAMPLE:
                    break
        if broken:
            from charset_normalizer import from_bytes

            best = from_bytes(bytes(broken), cp_exclusion=_NOT_GUESSED).best()
            return best.encoding if best else None
    return None
