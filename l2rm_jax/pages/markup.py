"""Helpers of all pages: escape texts, hash styles and scripts, read the files next to the code."""

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


def policy_hash(content: str) -> str:
    """Return the hash that names an inline style or script in a `Content-Security-Policy`."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def read_parts(code: str, *names: str) -> str:
    """Read and join the styles or scripts next to a Python file (its `__file__`)."""
    return "\n".join(Path(code).with_name(name).read_text(encoding="utf-8") for name in names)
