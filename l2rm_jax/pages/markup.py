"""What the pages share: texts that cannot be more than text, and the files beside the code."""

import base64
import hashlib
import html
import unicodedata
from pathlib import Path


def escape_text(text: str) -> str:
    """Escape a text for HTML; characters that a page cannot hold become U+FFFD."""
    valid = (
        "\ufffd" if unicodedata.category(x) in ("Cc", "Cs") and x not in "\t\n" else x for x in text
    )
    return html.escape("".join(valid), quote=True)


def policy_hash(content: str) -> str:
    """The name of an inline style or script in a `Content-Security-Policy`."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def read_parts(code: str, *names: str) -> str:
    """The styles or scripts beside a Python file (its `__file__`), one after the other."""
    return "\n".join(Path(code).with_name(name).read_text(encoding="utf-8") for name in names)
