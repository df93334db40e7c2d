"""Text of users in CSV files: a spreadsheet computes cells that begin like a formula.

References:
    OWASP, CSV Injection.
"""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def plain_cell(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would compute; `original_cell` undoes it."""
    return f"'{text}" if _FORMULA.match(text) else text


def original_cell(cell: str) -> str:
    """Take the apostrophe of `plain_cell` away."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
