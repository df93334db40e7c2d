"""Display an audit in a notebook: the verdict, and the most suspicious pairs."""

from typing import Any

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.suspects import percent
from l2rm_jax.judging.judgement import KINDS
from l2rm_jax.pages.markup import escape_text
from l2rm_jax.pages.thumbnails import make_thumbnail

_SIDE = 96  # of a picture in pixels
_TEXT = 200  # most characters of a caption


def audit_html(audit: Audit, pairs: int) -> str:
    """Return the HTML of the verdict and of the most suspicious pairs.

    Args:
      audit: the audit.
      pairs: number of pairs to show.
    """
    data, found = audit.pairs, audit.judgement
    sentences = "".join(f"<p>{escape_text(line)}</p>" for line in audit.verdict())
    rows, ids, labels = found.order[:pairs].tolist(), data.image_ids, data.labels
    header = ["", "image", "caption", "suspicion", "kind"]
    header += ["proposed caption"] if found.proposal.shape[1] else []
    lines = []
    for row in rows:
        image = int(found.image_of[row])
        picture = "" if data.pictures is None else _picture(data.pictures[image])
        cells = [ids[image], labels[row], percent(found.posterior[row])]
        cells.append(KINDS[found.kind[row]].replace("_", " "))
        if found.proposal.shape[1]:
            best = found.proposal[row, 0]
            cells.append(labels[best] if best >= 0 else "")
        texts = "".join(f"<td>{escape_text(_short(cell))}</td>" for cell in cells)
        lines.append(f"<tr><td>{picture}</td>{texts}</tr>")
    head = "".join(f"<th>{name}</th>" for name in header)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return sentences + (table if lines else "")


def _picture(picture: Any) -> str:
    """Return the element of a picture; "" if it cannot be shown."""
    shown = make_thumbnail(picture, side=_SIDE)
    return "" if isinstance(shown, str) else f'<img src="{shown.uri}" style="max-height:{_SIDE}px">'


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
