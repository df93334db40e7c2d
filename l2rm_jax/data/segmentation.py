"""Split text in scripts without spaces into words.

Each ideograph and kana is a word. ICU's dictionaries split Thai, Lao, Khmer and Burmese. Other
words of such a caption are split at spaces and punctuation.
"""

import importlib.util
import re
import unicodedata
from collections.abc import Iterator

from l2rm_jax.errors import ConfigError

_IDEOGRAPHS = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
# Thai, Lao, Burmese with its extensions, Khmer.
_DICTIONARY = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0eff\u1000-\u109f\ua9e0-\ua9fe\uaa60-\uaa7f\u1780-\u17d3"
)
_MARKS = "\u0300-\u036f\u3099\u309a\ufe00-\ufe0f"
_UNSPACED = re.compile(f"[{_IDEOGRAPHS}{_DICTIONARY}]")
_WORD = re.compile(
    f"(?P<ideograph>[{_IDEOGRAPHS}][{_MARKS}]*)|(?P<dictionary>[{_DICTIONARY}{_MARKS}]+)"
    rf"|(?P<other>(?:(?![{_IDEOGRAPHS}{_DICTIONARY}])[\w'\u2019\u0300-\u036f])+)|(?P<mark>\S)"
)
_OTHER_WORD = re.compile(rf"(?:(?![{_IDEOGRAPHS}{_DICTIONARY}])\w)+")
# Characters without width: soft hyphens, byte order marks, marks of direction. Joiners are part of
# words of Persian and of emoji; scripts without spaces do not need them.
_BREAK, _JOINERS = "\u200b", re.compile("[\u200c\u200d]")
_NO_WIDTH = re.compile("[\u00ad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_WIDE = re.compile("[\uff01-\uffee]+")  # full-width letters and marks, half-width kana


def clean_text(text: str) -> str:
    """Normalise a text to one line, in NFC, without zero-width characters except joiners."""
    text = _NO_WIDTH.sub("", text.replace(_BREAK, " "))
    return " ".join(unicodedata.normalize("NFC", text).split())


def is_unspaced(text: str) -> bool:
    """Whether most of a text is in scripts without spaces: more of their characters than words."""
    if text.isascii():
        return False
    return len(_UNSPACED.findall(text)) > len(_OTHER_WORD.findall(text))


def segment(text: str) -> list[str]:
    """Split a lower-case text in scripts without spaces into words.

    Full-width letters, digits and punctuation become normal ones.

    Raises:
      ConfigError: the text requires the library icu4py, which is not installed.
    """
    text = _WIDE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), _JOINERS.sub("", text))
    text = clean_text(text)
    return [word for match in _WORD.finditer(text) for word in _words_of(match)]


def _words_of(match: re.Match) -> Iterator[str]:
    if match.lastgroup != "dictionary":
        yield match[0]
        return
    if importlib.util.find_spec("icu4py") is None:
        raise ConfigError(
            f"captions: splitting {match[0][:20]!r} into words requires the library icu4py",
            hint="pip install 'l2rm_jax[languages]'",
        )
    from icu4py.breakers import WordBreaker

    yield from (word for word in WordBreaker(match[0], "en") if not word.isspace())
