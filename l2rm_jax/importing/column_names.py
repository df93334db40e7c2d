"""Usual names: of columns, of picture files, and of the fields of a caption in JSON."""

import re
from collections.abc import Iterable

# The most specific first. `url` and `key` are what img2dataset and LAION call an image.
IMAGE_NAMES = (
    *("filepath", "file_path", "image_path", "image_file", "image_name", "file_name", "filename"),
    *("image", "img", "path", "file", "picture", "photo", "jpg", "jpeg", "png", "webp"),
    *("url", "image_url", "image_urls", "images", "image_id", "img_id", "key", "__key__", "id"),
)
CAPTION_NAMES = (
    *("title", "caption", "captions", "raw", "text", "txt", "sentence", "sentences"),
    *("description", "alt_text", "alt", "comment", "caption_str", "reference_strs"),
    *("conversations", "conversation", "messages"),
)
SPLIT_NAMES = ("split", "set_name", "partition")
FOLDER_NAMES = ("filepath", "file_path", "path", "folder", "directory", "dir")
LINES = ".lines"  # after the name of a column: each line of a cell is a caption
FILE_NAMES = ("filename", "file_name", "image_name")
# Fields of an object that stands for a caption, or for a picture.
CAPTION_FIELDS = ("raw", "caption", "text", "sentence", *CAPTION_NAMES)
PICTURE_FIELDS = ("path", "file_name", "filename", "filepath", "src", "url")
# Turns of a conversation about a picture: only the answers are captions.
SPEAKER_FIELDS = ("from", "role", "speaker")
CONTENT_FIELDS = ("value", "content", "text")
ANSWERS = ("gpt", "assistant", "model", "chatgpt", "bot", "ai")
PROMPTS = ("human", "user", "system", "tool", "function", "observation")
PICTURE_ENDINGS = frozenset(
    (
        *("apng", "avif", "bmp", "gif", "heic", "heif", "ico", "jfif", "jp2", "jpe", "jpeg"),
        *("jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"),
    )
)
ADDRESSES = ("http://", "https://", "s3://", "gs://")
_PICTURE = rf"\.(?:{'|'.join(sorted(PICTURE_ENDINGS))})"
_LOOKS_LIKE_PICTURE = re.compile(
    rf"(?:https?|s3|gs)://\S+|[^\n]*{_PICTURE}(?:#\w+)?", re.IGNORECASE
)
# Flickr's token files number the captions of a picture: `1000.jpg#0`.
NUMBERED_PICTURE = rf"(?i)({_PICTURE})#\w+$"


def looks_like_picture(text: str) -> bool:
    """Whether a text is the name or the address of a picture file."""
    return bool(_LOOKS_LIKE_PICTURE.fullmatch(text.strip()))


def is_usual(name: str) -> bool:
    """Whether this is a usual name of images or captions."""
    return name.strip().lower() in {*IMAGE_NAMES, *CAPTION_NAMES}


def field_of(value: dict, names: Iterable[str]) -> str | None:
    """The first of `names` that is a filled field of an object, whatever its case."""
    by_name = {str(key).lower(): key for key, each in value.items() if each is not None}
    return next((by_name[name] for name in names if name in by_name), None)
