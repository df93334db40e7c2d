"""Helpers of all pages: escape texts, write the policy, read the files next to the code."""

import base64
import hashlib
import html
import unicodedata
from pathlib import Path


def escape_text(text: str) -> str:
    """Escape a text for HTML; characters that are invalid in a page become U+FFFD."""
    valid = (
        "\ufffd" if unicodedata.category(x) in ("Cc", "Cs") and x not in "\t\n" else x for x in text
    )
    return html.escape("".join(valid), quote=True)


def content_policy(style: str, script: str, images: str) -> str:
    """Return the `Content-Security-Policy` that allows one style, one script and some images."""
    hashes = (hashlib.sha256(content.encode()).digest() for content in (style, script))
    style_hash, script_hash = (f"'sha256-{base64.b64encode(x).decode()}'" for x in hashes)
    return (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src {images}; "
        f"style-src {style_hash}; script-src {script_hash}"
    )


def read_parts(code: str, *names: str) -> str:
    """Read and join the styles or scripts next to a Python file (its `__file__`)."""
    return "\n".join(Path(code).with_name(name).read_text(encoding="utf-8") for name in names)
