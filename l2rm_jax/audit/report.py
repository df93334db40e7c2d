"""The report of an audit: its first sentences, its tables, and all its numbers."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from l2rm_jax.audit.findings import KINDS, PLACEHOLDER, Audit, Placeholder, Shift
from l2rm_jax.audit.review import UNSURE, WRONG, Decisions, ReviewedRate
from l2rm_jax.methods.split import auroc
from l2rm_jax.version import __version__

_SHOWN = 20  # rows of a table
_SEEN = 0.5  # recall from which on a mechanism counts as seen
_MEANINGS = {
    "matched": "nothing speaks against it",
    "alternate": "stored with an image whose near image has the same caption: fits as well",
    "doubtful": "the caption fits no better than a random one",
    "foreign_set": "all captions of the image belong elsewhere together",
    "uninformative": "the caption says nothing about any image",
    "shifted": "in a run of rows whose captions belong to the images of other rows",
    "placeholder": "its picture stands with many captions that have nothing in common",
}
_HELP = (
    "More pairs would help, or vectors of an encoder that was trained on many pairs of images and "
    "texts"
)
_MECHANISMS = {
    "image": "all captions of an image moved to another one",
    "caption": "one caption moved to another image",
    "near": "one caption moved to an image with similar captions",
}

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, header, rows


class DoubtedList(NamedTuple):
    """The most doubtful pairs, as many as have about 10% false alarms.

    Attributes:
      pairs: how many.
      holds: expected share of all mismatched pairs that are among them.
      false_alarms: expected share of them that are matched.
    """

    pairs: int
    holds: float
    false_alarms: float


def doubted_list(audit: Audit) -> DoubtedList:
    """What the list of the most doubtful pairs holds."""
    pairs, order = audit.listed, audit.findings.order
    order = order[audit.findings.kind[order] != PLACEHOLDER]
    posterior = audit.findings.posterior[order]
    if not pairs:
        return DoubtedList(0, 0.0, math.nan)
    listed = float(posterior[:pairs].sum())
    return DoubtedList(pairs, listed / max(float(posterior.sum()), 1e-12), 1 - listed / pairs)


def verdict(audit: Audit) -> list[str]:
    """The first sentences: how many pairs are mismatched, what the list holds, what is not seen."""
    if audit.cannot_tell and not audit.ranks:
        first = [
            f"Cannot tell which pairs are mismatched, or how many: {audit.cannot_tell}. {_HELP}."
        ]
    elif audit.cannot_tell:
        first = [
            "The list can be used: a pair that is mismatched at random comes before a matched one "
            f"in at least {100 * audit.auroc:.0f} of 100 cases.",
            f"Cannot tell how many pairs are mismatched: {audit.cannot_tell}. {_HELP}.",
        ]
    else:
        first = [_rate_sentence(audit), _list_sentence(audit)]
    if not audit.cannot_tell or audit.ranks:
        first.append(_blind_sentence(audit))
    return [*first, *map(partial(_placeholder_sentence, audit), audit.placeholders[:1])]


def _placeholder_sentence(audit: Audit, found: Placeholder) -> str:
    """Which picture stands with many captions; of several, the one with most."""
    others = len(audit.placeholders) - 1
    more = f", as of {others:,} more pictures" if others else ""
    return (
        f"The same picture ({audit.inputs.ids[found.row]}) stands with {found.pairs:,} captions "
        f"that have nothing in common: these pairs are left out of all other numbers{more}."
    )


def _rate_sentence(audit: Audit) -> str:
    rate = audit.rate
    return (
        f"{_percent(rate.estimate)} of the pairs fit no better than random ones "
        f"(90%: {100 * rate.low:.1f} to {100 * rate.high:.1f})."
    )


def _list_sentence(audit: Audit) -> str:
    pairs, holds, false_alarms = doubted_list(audit)
    if not pairs:
        return "No list of doubted pairs would have fewer than 1 false alarm in 10."
    often = f"1 in {1 / false_alarms:.0f}" if false_alarms >= 0.01 else "fewer than 1 in 100"
    return f"The first {pairs:,} hold {holds:.0%} of them; {often} of these is a false alarm."


def _blind_sentence(audit: Audit) -> str:
    near = next((each for each in audit.mechanisms if each.name == "near"), None)
    if near is None or not math.isfinite(near.recall):
        return "Captions of a similar image are not seen."
    if audit.cannot_tell:
        return "Captions of a similar image may not be seen."
    seen = "not seen" if near.recall < _SEEN else "seen in part"
    return f"Captions of a similar image are {seen}: the list holds {near.recall:.0%} of them."


def tables(audit: Audit) -> list[Table]:
    """What is said of the pairs, and how well mismatched pairs are found; empty tables left out."""
    found, inputs = audit.findings, audit.inputs
    counts = np.bincount(found.kind, minlength=len(KINDS))
    kinds = [
        (name.replace("_", " "), f"{count:,}", _MEANINGS[name])
        for name, count in zip(KINDS, counts, strict=True)
        if count
    ]
    mechanisms = [
        (_MECHANISMS[each.name], *map(_number, (each.auroc, each.cosine_auroc)),
         *map(_percent, (each.recall, each.false_positives)))
        for each in audit.mechanisms
    ]  # fmt: skip
    if audit.cannot_tell:  # tables of numbers that cannot be told would look like success
        kinds, mechanisms = [], []
    pictures = [
        (inputs.ids[each.row], f"{each.row:,}", f"{each.images:,}", f"{each.pairs:,}")
        for each in audit.placeholders[:_SHOWN]
    ]
    words = inputs.words.examples if inputs.words else ()
    shifts = [(shift_sentence(each),) for each in audit.shifts[:_SHOWN]]
    texts = inputs.texts or [""] * len(found.image)
    repeated = [
        (f"{each.images:,}", f"{each.row:,}", _short(texts[each.row]))
        for each in audit.repeated[:_SHOWN]
    ]
    conflicts = [
        (inputs.ids[found.image[one]], *(f"{row}: {_short(texts[row])}" for row in (one, other)))
        for one, other in audit.conflicts[:_SHOWN]
    ]
    asked = [
        ("What is said of the pairs", ("", "pairs", "meaning"), kinds),
        (
            "How well pairs that were mismatched on purpose are found",
            ("mismatched", "AUROC", "by similarity alone", "in the list", "false positives"),
            mechanisms,
        ),
        (_title("Shifted rows", audit.shifts), ("",), shifts),
        (
            _title("Texts that stand with many images", audit.repeated),
            ("images", "row", "text"),
            repeated,
        ),
        (
            _title("Captions of one image that contradict each other", audit.conflicts),
            ("image", "caption", "caption"),
            conflicts,
        ),
        (
            _title("The same picture under many captions", audit.placeholders),
            ("picture", "row", "images", "captions"),
            pictures,
        ),
        ("What captions became", ("caption", "words"), words),
    ]
    return [table for table in asked if table[2]]


def shift_sentence(shift: Shift) -> str:
    """Which rows are shifted, and where their images are."""
    rows = "the row" if abs(shift.offset) == 1 else f"{abs(shift.offset)} rows"
    where = f"{rows} {'after' if shift.offset > 0 else 'before'}"
    return f"Rows {shift.first:,} to {shift.last:,}: the captions fit the images of {where}."


def _title(title: str, rows: Sequence) -> str:
    return f"{title} ({len(rows):,})" if len(rows) <= _SHOWN else (
        f"{title} ({len(rows):,}, the first {_SHOWN} shown)"
    )  # fmt: skip


def warnings(audit: Audit, reviewed: ReviewedRate | None) -> list[str]:
    """Reasons to doubt the rate."""
    words, rate = audit.inputs.words, audit.rate
    lines = list(words.warnings.values()) if words else []
    if audit.cannot_tell:
        return lines
    if abs(rate.strict - rate.estimate) > rate.high - rate.low:
        lines.append(
            f"The most doubtful pairs alone give a rate of {_percent(rate.strict)}, which differs "
            "by more than the interval: the pairs are not a mixture of matched and random ones."
        )
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


def page(
    audit: Audit, decisions: Decisions | None, reviewed: ReviewedRate | None, notes: Sequence[str]
) -> str:
    """`report.md`: the verdict, then the tables.

    Args:
      audit: what was found.
      decisions: what was decided by eye; None without.
      reviewed: the rate by eye; None without.
      notes: sentences about the files that were written.
    """
    inputs, settings = audit.inputs, audit.settings
    pairs, images = len(audit.findings.image), inputs.images.shape[0]
    parts = [
        f"# Audit of {_escaped(inputs.name)}",
        f"{pairs:,} pairs, {images:,} images.",
        *verdict(audit),
        *(f"**Warning.** {line}" for line in warnings(audit, reviewed)),
    ]
    parts += [f"## {title}\n\n{_markdown(*rest)}" for title, *rest in tables(audit)]
    if audit.mechanisms and not audit.cannot_tell:
        parts.append(
            "AUROC is corrected for the mismatched pairs that the data hold already. The "
            "similarity is that of the models that judged the pairs: a cosine, for linear ones. "
            "False positives: the stored pairs above the doubt at which 90% of the mismatched are "
            "found."
        )
    if decisions is not None:
        parts.append(f"## By eye\n\n{_by_eye(decisions, reviewed)}")
    if inputs.truth is not None:
        parts.append(f"## Against the truth\n\n{_against_truth(audit)}")
    seen = ", ".join(f"{name} {value}" for name, value in settings._asdict().items() if value != "")
    parts += [
        "## What cannot be seen\n\nPairs mismatched on purpose are random. A caption of a similar "
        "image, a caption that is half right and a text about something else than the picture may "
        "pass as matched. Only the review by eye counts them.",
        "## Files\n\n" + "\n".join(f"* {_escaped(note)}" for note in notes),
        f"## How it was judged\n\nScorer: {audit.scorer}. Settings: {seen}. Inputs: "
        f"`{inputs.digest}`. Versions: l2rm_jax {__version__}, "
        + ", ".join(f"{name} {number}" for name, number in _versions().items())
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def _by_eye(decisions: Decisions, reviewed: ReviewedRate | None) -> str:
    unsure = np.count_nonzero(decisions.decision == UNSURE)
    lines = [
        f"{len(decisions.row):,} pairs were decided, {len(decisions.rows(WRONG)):,} of them wrong "
        f"and {unsure:,} unsure."
    ]
    if reviewed:
        lines.append(
            f"By the {reviewed.pairs:,} pairs of the blind review, {_interval(reviewed)} of all "
            "pairs are wrong, whatever kind of mismatch they are."
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
    truth, found = audit.inputs.truth, audit.findings
    values = {"rate": float(truth.mean())}
    if truth.any() and not truth.all():
        doubt = np.empty(len(truth))
        doubt[found.order] = np.arange(len(truth), 0, -1)
        values["auroc"] = auroc(doubt, truth)
    pairs = audit.listed
    if pairs and truth.any():
        listed = truth[found.order[:pairs]]
        values["list_recall"] = float(listed.sum() / truth.sum())
        values["list_false_alarms"] = float(1 - listed.mean())
    return values


def values(
    audit: Audit, decisions: Decisions | None, reviewed: ReviewedRate | None
) -> dict[str, Any]:
    """`report.json`: all numbers; one that is not known is null."""
    found, inputs = audit.findings, audit.inputs
    counts = np.bincount(found.kind, minlength=len(KINDS)).tolist()
    return _without_nan(
        {
            "inputs": {
                "name": inputs.name,
                "digest": inputs.digest,
                "pairs": len(found.image),
                "images": inputs.images.shape[0],
            },
            "settings": audit.settings._asdict(),
            "versions": {"l2rm_jax": __version__, **_versions()},
            "verdict": verdict(audit),
            "warnings": warnings(audit, reviewed),
            "cannot_tell": audit.cannot_tell,
            "auroc": audit.auroc,
            "ranks": audit.ranks,
            "placeholders": [each._asdict() for each in audit.placeholders],
            "scorer": audit.scorer,
            "rate": audit.rate._asdict(),
            "list": doubted_list(audit)._asdict(),
            "kinds": dict(zip(KINDS, counts, strict=True)),
            "mechanisms": [each._asdict() for each in audit.mechanisms],
            "shifts": [each._asdict() for each in audit.shifts],
            "repeated": [each._asdict() for each in audit.repeated],
            "conflicts": audit.conflicts.tolist(),
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


def _short(text: str, most: int = 80) -> str:
    """A text on one line, cut."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """A text that Markdown shows as it is, within a line."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", " ".join(text.split()))
