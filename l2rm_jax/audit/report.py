"""The report of an audit: its first sentences, its tables, and all its numbers."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.review import UNSURE, WRONG, Decisions, ReviewedRate
from l2rm_jax.auroc import auroc
from l2rm_jax.judging.judgement import KINDS
from l2rm_jax.judging.verdict import doubted_list, shift_sentence, verdict
from l2rm_jax.version import __version__

_SHOWN = 20  # rows of a table
_WIDTH = 80  # characters of a text in it
_MEANINGS = {
    "matched": "nothing speaks against it",
    "alternate": "stored with an image whose near image has the same caption: fits as well",
    "doubtful": "the caption fits no better than a random one",
    "foreign_set": "all captions of the image belong elsewhere together",
    "uninformative": "the caption says nothing about any image",
    "shifted": "in a run of rows whose captions belong to the images of other rows",
    "placeholder": "its picture stands with many captions that have nothing in common",
}
_MECHANISMS = {
    "image": "all captions of an image moved to another one",
    "caption": "one caption moved to another image",
    "near": "one caption moved to an image with similar captions",
}

_ASSUMED = (
    "How many captions of similar images there may be at most follows from a test: each caption "
    "stands with the image whose captions are the second most like it, among at most 1,000 of its "
    "fold. Captions that fit an image better than these do would not be counted."
)

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, header, rows


def tables(audit: Audit) -> list[Table]:
    """What is said of the pairs, and how well mismatched pairs are found; empty tables left out."""
    found, inputs = audit.judgement, audit.inputs
    counts = np.bincount(found.kind, minlength=len(KINDS))
    kinds = [
        (name.replace("_", " "), f"{count:,}", _MEANINGS[name])
        for name, count in zip(KINDS, counts, strict=True)
        if count
    ]
    mechanisms = [
        (_MECHANISMS[each.name], *map(_number, (each.auroc, each.cosine_auroc)),
         *map(_percent, (each.recall, each.false_positives)))
        for each in audit.judgement.mechanisms
    ]  # fmt: skip
    if audit.judgement.cannot_tell:  # tables of numbers that cannot be told would look like success
        kinds, mechanisms = [], []
    pictures = [
        (inputs.ids[each.row], f"{each.row:,}", f"{each.images:,}", f"{each.pairs:,}")
        for each in audit.judgement.placeholders[:_SHOWN]
    ]
    words = inputs.words.examples if inputs.words else ()
    shifts = [(shift_sentence(each),) for each in audit.judgement.shifts[:_SHOWN]]
    texts = inputs.texts or [""] * len(found.image)
    repeated = [
        (f"{each.images:,}", f"{each.row:,}", _short(texts[each.row]))
        for each in audit.judgement.repeated[:_SHOWN]
    ]
    conflicts = [
        (inputs.ids[found.image[one]], *(f"{row}: {_short(texts[row])}" for row in (one, other)))
        for one, other in audit.judgement.conflicts[:_SHOWN]
    ]
    asked = [
        ("What is said of the pairs", ("", "pairs", "meaning"), kinds),
        (
            "How well pairs that were mismatched on purpose are found",
            ("mismatched", "AUROC", "by similarity alone", "in the list", "false positives"),
            mechanisms,
        ),
        (_title("Shifted rows", audit.judgement.shifts), ("",), shifts),
        (
            _title("Texts that stand with many images", audit.judgement.repeated),
            ("images", "row", "text"),
            repeated,
        ),
        (
            _title("Captions of one image that contradict each other", audit.judgement.conflicts),
            ("image", "caption", "caption"),
            conflicts,
        ),
        (
            _title("The same picture under many captions", audit.judgement.placeholders),
            ("picture", "row", "images", "captions"),
            pictures,
        ),
        ("What captions became", ("caption", "words"), words),
    ]
    return [table for table in asked if table[2]]


def _title(title: str, rows: Sequence) -> str:
    return f"{title} ({len(rows):,})" if len(rows) <= _SHOWN else (
        f"{title} ({len(rows):,}, the first {_SHOWN} shown)"
    )  # fmt: skip


def warnings(audit: Audit, reviewed: ReviewedRate | None) -> list[str]:
    """Reasons to doubt the rate."""
    words, rate = audit.inputs.words, audit.judgement.rate
    lines = list(words.warnings.values()) if words else []
    if audit.judgement.cannot_tell:
        return lines
    if reviewed and reviewed.low > rate.high:
        lines.append(
            f"By eye, more pairs are wrong ({_interval(reviewed)}) than fit no better than random "
            "ones: some mismatched pairs cannot be seen in these vectors."
        )
    if reviewed and reviewed.high < rate.low:
        lines.append(
            f"By eye, fewer pairs are wrong ({_interval(reviewed)}) than fit no better than random "
            "ones: these vectors miss what makes some of the pairs fit."
        )
    return lines


def page(audit: Audit, reviewed: ReviewedRate | None, notes: Sequence[str]) -> str:
    """`report.md`: the verdict, then the tables.

    Args:
      audit: what was found.
      reviewed: the rate by eye; None without.
      notes: sentences about the files that were written.
    """
    inputs, settings, decisions = audit.inputs, audit.settings, audit.decisions
    found, made = audit.judgement, audit.judgement.made
    pairs, images = len(found.image), len(inputs.ids)
    parts = [
        f"# Audit of {_escaped(inputs.name)}",
        f"{pairs:,} pairs, {images:,} images.",
        *verdict(audit.judgement, inputs.ids),
        *(f"**Warning.** {line}" for line in warnings(audit, reviewed)),
    ]
    parts += [f"## {title}\n\n{_markdown(*rest)}" for title, *rest in tables(audit)]
    if audit.judgement.mechanisms and not audit.judgement.cannot_tell:
        parts.append(
            "AUROC is corrected for the mismatched pairs that the data hold already. The "
            "similarity is that of the models that judged the pairs: a cosine, for linear ones. "
            "False positives: the stored pairs above the doubt at which 90% of the mismatched are "
            "found."
        )
    if decisions is not None:
        parts.append(f"## By eye\n\n{by_eye(decisions, reviewed)}")
    if inputs.truth is not None:
        parts.append(f"## Against the truth\n\n{_against_truth(audit)}")
    seen = ", ".join(f"{name} {value}" for name, value in settings._asdict().items() if value != "")
    parts += [
        "## What cannot be seen\n\nPairs mismatched on purpose are random. A caption of a similar "
        "image, a caption that is half right and a text about something else than the picture may "
        "pass as matched. Only the review by eye counts them."
        + ("" if found.cannot_tell else f" {_ASSUMED}"),
        "## Files\n\n" + "\n".join(f"* {_escaped(note)}" for note in notes),
        f"## How it was judged\n\nDetector: {made.by}, {made.folds} folds, seed {made.seed}. "
        f"Settings: {seen}. Inputs: `{inputs.digest}`. Versions: l2rm_jax {__version__}, "
        + ", ".join(f"{name} {number}" for name, number in _versions().items())
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def by_eye(decisions: Decisions, reviewed: ReviewedRate | None) -> str:
    """How many pairs were decided by eye, and the rate that the review implies."""
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
            f"By the blind review of {pairs}, {_interval(reviewed)} of all pairs are wrong, "
            "whatever kind of mismatch they are."
        )
    return " ".join(lines)


def _against_truth(audit: Audit) -> str:
    known = _truth_values(audit)
    text = f"{_percent(known['rate'])} of the pairs were mismatched on purpose. "
    if "auroc" in known:
        text += f"In the order of doubt they have an AUROC of {known['auroc']:.3f}. "
    if "list_recall" in known:
        text += (
            f"The list holds {known['list_recall']:.1%} of them; "
            f"{known['list_false_alarms']:.1%} of it are matched."
        )
    return text.rstrip()


def _truth_values(audit: Audit) -> dict[str, float]:
    truth, found = audit.inputs.truth, audit.judgement
    values = {"rate": float(truth.mean())}
    if truth.any() and not truth.all():
        doubt = np.empty(len(truth))
        doubt[found.order] = np.arange(len(truth), 0, -1)
        values["auroc"] = auroc(doubt, truth)
    pairs = audit.judgement.listed
    if pairs and truth.any():
        listed = truth[found.order[:pairs]]
        values["list_recall"] = float(listed.sum() / truth.sum())
        values["list_false_alarms"] = float(1 - listed.mean())
    return values


def values(audit: Audit, reviewed: ReviewedRate | None) -> dict[str, Any]:
    """`report.json`: all numbers; one that is not known is null."""
    found, inputs, decisions = audit.judgement, audit.inputs, audit.decisions
    counts = np.bincount(found.kind, minlength=len(KINDS)).tolist()
    return _without_nan(
        {
            "inputs": {
                "name": inputs.name,
                "digest": inputs.digest,
                "pairs": len(found.image),
                "images": len(inputs.ids),
            },
            "settings": audit.settings._asdict(),
            "versions": {"l2rm_jax": __version__, **_versions()},
            "verdict": verdict(audit.judgement, inputs.ids),
            "warnings": warnings(audit, reviewed),
            "cannot_tell": audit.judgement.cannot_tell,
            "auroc": audit.judgement.auroc,
            "ranks": audit.judgement.ranks,
            "placeholders": [each._asdict() for each in audit.judgement.placeholders],
            "detector": found.made.by,
            "rate": audit.judgement.rate._asdict(),
            "at_most": audit.judgement.at_most,
            "list": doubted_list(audit.judgement)._asdict(),
            "kinds": dict(zip(KINDS, counts, strict=True)),
            "mechanisms": [each._asdict() for each in audit.judgement.mechanisms],
            "shifts": [each._asdict() for each in audit.judgement.shifts],
            "repeated": [each._asdict() for each in audit.judgement.repeated],
            "conflicts": audit.judgement.conflicts.tolist(),
            "truth": None if inputs.truth is None else _truth_values(audit),
            "decided": None if decisions is None else len(decisions.row),
            "reviewed_rate": reviewed and reviewed._asdict(),
        }
    )


def to_json(content: dict[str, Any]) -> str:
    """The text of `report.json`."""
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


def _interval(rate: ReviewedRate) -> str:
    return f"{_percent(rate.estimate)}, 90%: {100 * rate.low:.1f} to {100 * rate.high:.1f}"


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
    """A text that Markdown shows as it is, within a line."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", " ".join(text.split()))
