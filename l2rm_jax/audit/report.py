"""Report of an audit: sentences, tables, and numbers."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.rates_by import GroupRate
from l2rm_jax.audit.review import UNSURE, WRONG, Decisions, ReviewedRate
from l2rm_jax.audit.suspects import find_suspects, percent
from l2rm_jax.auroc import auroc
from l2rm_jax.judging.judgement import KINDS
from l2rm_jax.judging.verdict import suspicious_list
from l2rm_jax.version import __version__

_SHOWN = 20  # most rows of a table
_WIDTH = 80  # most characters of a text in a table
_MEANINGS = {
    "matched": "no sign of a mismatch",
    "near_duplicate": "a near duplicate of the image has the same caption, so it fits as well",
    "swapped_caption": "the caption fits no better than a random caption",
    "swapped_set": "all captions of the image belong to another image",
    "suspicious": "the only caption of its image fits no better than a random caption",
    "uninformative": "the caption does not describe any particular image",
    "unlike": "fits worse than 95% of the reference's matched pairs, but is probably matched",
    "placeholder": "its picture is stored with many unrelated captions",
}
_MECHANISMS = {
    "image": "all captions of an image moved to another one",
    "caption": "one caption moved to another image",
    "near": "one caption moved to an image with similar captions",
}

_ASSUMED = (
    "The upper bound for swaps between similar images comes from simulated swaps: each caption is "
    "paired with the image whose captions are the second most similar to it, among at most 1,000 "
    "images of its fold. Captions that fit their wrong image better than these are not counted."
)

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, header, rows


def tables(audit: Audit) -> list[Table]:
    """Return the tables of the report, without empty ones."""
    found, ids, words = audit.judgement, audit.pairs.image_ids, audit.words
    lines, first = audit.lines, _first_lines(audit)
    counts = np.bincount(found.kind, minlength=len(KINDS))
    kinds = [
        (name.replace("_", " "), f"{count:,}", _MEANINGS[name])
        for name, count in zip(KINDS, counts, strict=True)
        if count
    ]
    mechanisms = [
        (_MECHANISMS[each.name], *map(_number, (each.auroc, each.cosine_auroc)),
         *map(_percent, (each.recall, each.false_positives)))
        for each in found.mechanisms
    ]  # fmt: skip
    if found.unreliable_reason:  # tables of unreliable numbers would look like success
        kinds, mechanisms = [], []
    pictures = [
        (ids[each.row], first[each.row], f"{each.images:,}", f"{each.pairs:,}")
        for each in found.placeholders[:_SHOWN]
    ]
    texts = audit.pairs.texts or [""] * len(found.image_of)
    repeated = [
        (f"{each.images:,}", str(lines.numbers[each.row]), _short(texts[each.row]))
        for each in found.repeated[:_SHOWN]
    ]
    conflicts = [
        (
            ids[found.image_of[one]],
            *(f"{lines.name(row)}: {_short(texts[row])}" for row in (one, other)),
        )
        for one, other in found.conflicts[:_SHOWN]
    ]
    by = audit.settings.by
    rates = audit.by(by) if by and not found.unreliable_reason else []
    values = [
        (
            each.value,
            f"{each.pairs:,}",
            "cannot tell" if each.unreliable_reason else _interval(each),
        )
        for each in rates
    ]
    asked = [
        ("Kinds of pairs", ("", "pairs", "meaning"), kinds),
        (
            "Detection of simulated swaps",
            ("swap", "AUROC", "by similarity alone", "in the list", "false positives"),
            mechanisms,
        ),
        (f"By {by}", (by, "pairs", "mismatched (90% CI for all values together)"), values),
        (
            _title("Captions stored with many images", found.repeated),
            ("images", lines.word, "text"),
            repeated,
        ),
        (
            _title("Captions of one image that contradict each other", found.conflicts),
            ("image", "caption", "caption"),
            conflicts,
        ),
        (
            _title("Pictures with many unrelated captions", found.placeholders),
            ("picture", lines.word, "images", "captions"),
            pictures,
        ),
        ("Captions as words", ("caption", "words"), words.examples if words else ()),
    ]
    return [table for table in asked if table[2]]


def _first_lines(audit: Audit) -> dict[int, str]:
    """Return the number of the first pair of each placeholder picture, by row of the picture."""
    image_of, lines = audit.judgement.image_of, audit.lines.numbers
    rows = [each.row for each in audit.judgement.placeholders[:_SHOWN]]
    firsts = {row: lines[image_of == row][:1] for row in rows}
    return {row: str(first[0]) if len(first) else "-" for row, first in firsts.items()}


def suspects_table(audit: Audit) -> str:
    """Return the most suspicious pairs as a table of Markdown; "" without any."""
    rows = [
        (
            *(f"{each.rank:,}", str(each.line), each.id, _short(each.caption)),
            *(percent(each.posterior), each.kind.replace("_", " ")),
            _short(each.proposal),
        )
        for each in find_suspects(audit)[:_SHOWN]
    ]
    header = ["", audit.lines.word, "image", "caption", "suspicion", "kind", "proposal"]
    found = audit.judgement
    is_unsure = found.unreliable_reason and not found.is_rankable
    title = f"The most suspicious pairs{' (this ranking is unreliable)' if is_unsure else ''}"
    return f"## {title}\n\n{_markdown(header, rows)}" if rows else ""


def _title(title: str, rows: Sequence) -> str:
    return f"{title} ({len(rows):,})" if len(rows) <= _SHOWN else (
        f"{title} ({len(rows):,}, the first {_SHOWN} shown)"
    )  # fmt: skip


def warnings(audit: Audit, reviewed: ReviewedRate | None) -> list[str]:
    """Return reasons to distrust the rate."""
    words, rate = audit.words, audit.judgement.rate
    lines = [*(words.warnings.values() if words else ()), *audit.judgement.notes]
    if audit.judgement.unreliable_reason:
        return lines
    by = audit.decisions.by if audit.decisions else "eye"
    if reviewed and reviewed.low > rate.high:
        lines.append(
            f"By {by}, {_interval(reviewed)} of the pairs are wrong, more than match no better "
            "than random pairs: these embeddings do not show some of the mismatches."
        )
    if reviewed and reviewed.high < rate.low:
        lines.append(
            f"By {by}, {_interval(reviewed)} of the pairs are wrong, fewer than match no better "
            "than random pairs: these embeddings do not show why some of the pairs fit."
        )
    return lines


def page(audit: Audit, reviewed: ReviewedRate | None, notes: Sequence[str]) -> str:
    """Return the text of `report.md`: the verdict, then the tables.

    Args:
      audit: the audit to report.
      reviewed: the rate by eye; None without a review.
      notes: sentences about the files that were written.
    """
    pairs, settings, decisions = audit.pairs, audit.settings, audit.decisions
    found, made = audit.judgement, audit.judgement.made
    parts = [
        f"# Audit of {_escaped(pairs.name)}",
        f"{len(pairs):,} pairs, {pairs.images.shape[0]:,} images.",
        *audit.verdict(),
        *(f"**Warning.** {line}" for line in warnings(audit, reviewed)),
    ]
    parts += filter(None, [suspects_table(audit)])
    parts += [f"## {title}\n\n{_markdown(*rest)}" for title, *rest in tables(audit)]
    if found.mechanisms and not found.unreliable_reason:
        parts.append(
            "AUROC is corrected for the mismatched pairs already in the data. Similarity: of the "
            "models that judged the pairs, a cosine for linear models. False positives: share of "
            "stored pairs above the suspicion threshold that finds 90% of the swaps."
        )
    if decisions is not None:
        parts.append(f"## By eye\n\n{by_eye(decisions, reviewed)}")
    if audit.truth is not None:
        parts.append(f"## Against the truth\n\n{_against_truth(audit)}")
    seen = ", ".join(f"{name} {value}" for name, value in settings._asdict().items() if value != "")
    parts += [
        "## Undetected mismatches\n\nMost simulated swaps are random. A caption of a similar "
        "image, a half-right caption and a text that does not describe the picture may pass as "
        "matched. Only the review by eye counts them."
        + ("" if found.unreliable_reason or made.judge else f" {_ASSUMED}"),
        "## Files\n\n" + "\n".join(f"* {_escaped(note)}" for note in notes),
        f"## Method\n\nDetector: {made.by}, {made.folds} folds, seed {made.seed}. "
        f"Settings: {seen}. Inputs: `{pairs.digest}`. Versions: l2rm_jax {__version__}, "
        + ", ".join(f"{name} {number}" for name, number in _versions().items())
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def by_eye(decisions: Decisions, reviewed: ReviewedRate | None) -> str:
    """Return sentences on the number of decided pairs and the rate that the review implies."""
    unsure = np.count_nonzero(decisions.decision == UNSURE)
    if len(decisions.row) == 1:
        lines = [f"1 pair was decided: {decisions.decision[0]}."]
    else:
        lines = [
            f"{len(decisions.row):,} pairs were decided, {len(decisions.rows(WRONG)):,} of them "
            f"wrong and {unsure:,} unsure."
        ]
    if reviewed:
        pairs = "1 pair" if reviewed.pairs == 1 else f"{reviewed.pairs:,} pairs"
        lines.append(
            f"By the blind review of {pairs} (by {decisions.by}), {_interval(reviewed)} of all "
            "pairs are wrong, including near mismatches."
        )
    return " ".join(lines)


def _against_truth(audit: Audit) -> str:
    known = _truth_values(audit)
    text = f"{_percent(known['rate'])} of the pairs were mismatched deliberately. "
    if "auroc" in known:
        text += f"The ranking by suspicion has an AUROC of {known['auroc']:.3f}. "
    if "list_recall" in known:
        text += (
            f"The list includes {known['list_recall']:.1%} of them, with "
            f"{known['list_false_alarms']:.1%} false alarms."
        )
    return text.rstrip()


def _truth_values(audit: Audit) -> dict[str, float]:
    truth, found = audit.truth, audit.judgement
    values = {"rate": float(truth.mean())}
    if truth.any() and not truth.all():
        suspicion = np.empty(len(truth))
        suspicion[found.order] = np.arange(len(truth), 0, -1)
        values["auroc"] = auroc(suspicion, truth)
    pairs = audit.judgement.list_length
    if pairs and truth.any():
        listed = truth[found.order[:pairs]]
        values["list_recall"] = float(listed.sum() / truth.sum())
        values["list_false_alarms"] = float(1 - listed.mean())
    return values


def values(audit: Audit, reviewed: ReviewedRate | None) -> dict[str, Any]:
    """Return the contents of `report.json`: all numbers, with null for unknown ones."""
    found, pairs, decisions = audit.judgement, audit.pairs, audit.decisions
    counts = np.bincount(found.kind, minlength=len(KINDS)).tolist()
    return _without_nan(
        {
            "inputs": {
                "name": pairs.name,
                "digest": pairs.digest,
                "pairs": len(found.image_of),
                "images": pairs.images.shape[0],
            },
            "settings": audit.settings._asdict(),
            "versions": {"l2rm_jax": __version__, **_versions()},
            "verdict": audit.verdict(),
            "warnings": warnings(audit, reviewed),
            "cannot_tell": found.unreliable_reason,
            "auroc": found.auroc,
            "ranks": found.is_rankable,
            "placeholders": [each._asdict() for each in found.placeholders],
            "detector": found.made.by,
            "rate": found.rate._asdict(),
            "at_most": found.upper_bound,
            "list": suspicious_list(found)._asdict(),
            "kinds": dict(zip(KINDS, counts, strict=True)),
            "mechanisms": [each._asdict() for each in found.mechanisms],
            "repeated": [each._asdict() for each in found.repeated],
            "conflicts": found.conflicts.tolist(),
            "truth": None if audit.truth is None else _truth_values(audit),
            "decided": None if decisions is None else len(decisions.row),
            "reviewed_rate": reviewed and reviewed._asdict(),
            "certificate": audit.certificate and audit.certificate._asdict(),
        }
    )


def to_json(content: dict[str, Any]) -> str:
    """Return the text of `report.json`."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("jax", "numpy", "scipy")}


def _interval(rate: ReviewedRate | GroupRate) -> str:
    return f"{_percent(rate.estimate)} (90% CI: {100 * rate.low:.1f}-{100 * rate.high:.1f}%)"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if math.isfinite(share) else "-"


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def _short(text: str) -> str:
    """Collapse white space, and truncate to `_WIDTH` characters."""
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Escape a text so that Markdown shows it literally, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", " ".join(text.split()))
