"""List the suspicious pairs, the worst first, with the line of the user's file of each."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from l2rm_jax.audit.audit import SHOWN, Audit
from l2rm_jax.audit.lines import LINE, ROW
from l2rm_jax.data.spreadsheet_cells import plain_cell
from l2rm_jax.judging.judgement import KINDS, PLACEHOLDER

SUSPECTS = "suspects.csv"
_NAME, _TEXT = 40, 60  # most characters of a name and of a text on the screen


class Suspect(NamedTuple):
    """A suspicious pair.

    Attributes:
      rank: from 1, the most suspicious.
      line: number of the pair for a person (`Lines`): the line of the user's file, if it has any.
      id: the user's name of the image.
      caption: its text; without texts, its id.
      posterior: probability of being mismatched.
      kind: the kind of the pair.
      proposal: the caption that fits the image best instead; "" without a proposal.
      probability: probability of the proposal; NaN without one.
    """

    rank: int
    line: int
    id: str
    caption: str
    posterior: float
    kind: str
    proposal: str
    probability: float


def find_suspects(audit: Audit) -> list[Suspect]:
    """Return the suspicious pairs, the worst first and pairs of placeholder pictures last.

    Where the audit cannot tell the number of mismatched pairs, and with it their kinds, the first
    `SHOWN` pairs of the ranking are among them.
    """
    pairs, found = audit.pairs, audit.decided
    is_listed = np.ones(len(audit), bool)
    is_listed[audit.kept()] = False
    if found.unreliable_reason:
        is_listed[found.order[:SHOWN]] = True
    order = found.order[is_listed[found.order]]
    order = order[np.argsort(found.kind[order] == PLACEHOLDER, kind="stable")]
    lines, ids = audit.lines.numbers, pairs.image_ids
    texts = pairs.texts or pairs.caption_ids or [*map(str, range(len(audit)))]
    suspects = []
    for rank, row in enumerate(order.tolist(), 1):
        proposal = found.proposal[row, 0] if found.proposal.shape[1] else -1
        suspect = Suspect(
            rank,
            int(lines[row]),
            ids[found.image_of[row]],
            texts[row],
            float(found.posterior[row]),
            KINDS[found.kind[row]],
            texts[proposal] if proposal >= 0 else "",
            float(found.probability[row, 0]) if proposal >= 0 else np.nan,
        )
        suspects.append(suspect)
    return suspects


def write_suspects(audit: Audit, directory: Path) -> str:
    """Write `suspects.csv`; return a sentence about it.

    Text that a spreadsheet would compute as a formula has an apostrophe before it.
    """
    suspects = find_suspects(audit)
    with (directory / SUSPECTS).open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Suspect._fields)
        writer.writerows(map(_cells, suspects))
    by = "line of your file" if audit.lines.word == LINE else ROW
    return f"{SUSPECTS}: the {len(suspects):,} suspicious pairs by {by}, worst first"


def _cells(suspect: Suspect) -> list[str]:
    cells = [_number(value) if isinstance(value, float) else str(value) for value in suspect]
    return [*map(plain_cell, cells)]


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4f}"


def describe_suspects(audit: Audit, directory: Path) -> list[str]:
    """Return the first rows of `suspects.csv` as lines for the screen."""
    csv.field_size_limit(2**31 - 1)  # characters of a caption
    with (directory / SUSPECTS).open(encoding="utf-8", newline="") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(SHOWN), strict=False)]
    if not rows:
        return []
    judgement = audit.judgement
    is_unsure = judgement.unreliable_reason and not judgement.is_rankable
    unsure = "; this ranking is unreliable" if is_unsure else ""
    proposals = " -> proposals" if any(row["proposal"] for row in rows) else ""
    lines = [f"The most suspicious captions{proposals} (all in {directory / SUSPECTS}{unsure}):"]
    width = max(len(row["line"]) for row in rows)
    for row in rows:
        line = f"  {audit.lines.word} {row['line']:>{width}}: {_short_path(row['id'], _NAME)}: "
        line += _short(row["caption"], _TEXT)
        if row["proposal"]:
            line += f" -> {_short(row['proposal'], _TEXT)} ({percent(float(row['probability']))})"
        lines.append(line)
    return lines


def percent(share: float) -> str:
    """Return a probability as a percentage, without rounding it to a certainty."""
    if 0 < share < 0.005 or 0.995 <= share < 1:
        return "<1%" if share < 0.5 else ">99%"
    return f"{share:.0%}"


def _short_path(text: str, width: int) -> str:
    """Shorten a name, whose end tells more than its directories."""
    return _short(text if len(text) <= width else f"...{text[3 - width :]}", width)


def _short(text: str, width: int) -> str:
    """Shorten a text to one line; escape characters that could affect a terminal."""
    text = " ".join(text.split())
    text = text if len(text) <= width else f"{text[: width - 3]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
