"""Say a finding in one sentence, in the rows or lines of the user's table."""

from collections.abc import Callable
from typing import Any

Place = Callable[[int, int], str]  # "Lines 12-40" of the first row and the end
_WHOLE = {
    "reversed": "captions are in reverse order",
    "interleaved": "captions were read from {lists} lists in turn",
    "dealt": "captions are in {lists} lists, every {lists}th row each",
    "caption_major": "first captions of all images come first, then all second ones, and so on",
    "set_order": "captions are in the order in which a Python set holds the numbers of the ids",
    "seeded_shuffle": "captions were shuffled with {by}, images were not",
    "neighbours": "each two neighbouring images have each other's captions",
    "rolled": "captions start one row from the {edge}, and the last one is at the other end",
    "same_key": "images with the same id, read {key}, have the captions of the {wins} of them",
    "keys_disagree": "captions are not with the image that their own key names ({key})",
    "modulo": "captions start again after every {period:,} rows",
    "captions_per_image": "there are {count} captions per image",
    "shuffled_within": "captions belong to images within the same {size:,} rows, in unknown order",
    "shuffled": "captions belong to images of these rows, in an unknown order",
    "sorted_alone": "the caption column was sorted on its own, so no row can be trusted",
    "unrelated": "captions fit no image of this table; they may be of another split",
}


def sentence_of(kind: str, details: dict[str, Any], rows: int, place: Place, span: str) -> str:
    """Return the sentence of a finding.

    Args:
      kind: its kind.
      details: its details.
      rows: number of its rows.
      place: the user's name of a range of rows.
      span: the same of all rows of the finding.
    """
    text = _WHOLE[kind].format(**details) if kind in _WHOLE else _SPECIAL[kind](details, place)
    if "late" in details:
        text += f", and each is one row {'late' if details['late'] > 0 else 'early'}"
    if "groups" in details:
        text = f"within each of the {details['groups']:,} groups, {text}"
    counted = f"{rows:,} row" if rows == 1 else f"{rows:,} rows"
    return f"{span}: {text} ({counted})."


def offset_text(d: int) -> str:
    """Return the words for an offset: "the row before", "a row 3 rows below"."""
    if abs(d) == 1:
        return f"the row {'after' if d > 0 else 'before'}"
    return f"a row {abs(d):,} rows {'below' if d > 0 else 'above'}"


def _shifted(details: dict[str, Any], _place: Place) -> str:
    return f"each caption belongs to {offset_text(details['offset'])}"


def _repeated(details: dict[str, Any], place: Place) -> str:
    a, b, d = details["pieces"][0]
    return f"the captions are those of {place(a + d, b + d).lower()} again"


def _drifting(details: dict[str, Any], place: Place) -> str:
    parts = details["pieces"]
    near = ", ".join(place(a, a + 1).lower() for a, *_ in parts[:3])
    more = ", ..." if len(parts) > 3 else ""
    return (
        f"captions are {_count(parts[0][2])} off at first and {_count(parts[-1][2])} at the end; "
        f"rows of one side are missing near {near}{more}"
    )


def _pieces(details: dict[str, Any], _place: Place) -> str:
    parts = details["pieces"]
    offsets = sorted({abs(d) for *_, d in parts})
    off = _count(offsets[0]) if len(offsets) == 1 else f"{offsets[0]} to {offsets[-1]} rows"
    sizes = sorted(b - a for a, b, _ in parts)
    return f"{len(parts):,} runs of {sizes[0]:,} to {sizes[-1]:,} rows are {off} off"


def _swapped(details: dict[str, Any], place: Place) -> str:
    one, two = details["pieces"]
    return f"{place(*one[:2]).lower()} and {place(*two[:2]).lower()} have each other's captions"


def _reordered(details: dict[str, Any], _place: Place) -> str:
    parts, size = details["pieces"], details["size"]
    of = f" of {size:,} rows" if size else ""
    return f"{len(parts):,} blocks{of} of captions are in another order than the images"


def _by_number(details: dict[str, Any], _place: Place) -> str:
    d = details["offset"]
    return f"captions belong to the image whose number is {abs(d)} {'higher' if d > 0 else 'lower'}"


def _every(details: dict[str, Any], _place: Place) -> str:
    n, phases = details["n"], len(details["phase"])
    which = f"every {n}th row" if phases == 1 else f"{phases} of every {n} rows"
    return f"{which} has the caption of {offset_text(details['offset'])}"


def _by_caption(details: dict[str, Any], _place: Place) -> str:
    numbers = ", ".join(map(str, details["captions"]))
    where = "after" if details["offset"] > 0 else "before"
    return f"captions {numbers} of each image belong to the image {where}"


def _sorted_by_id(details: dict[str, Any], _place: Place) -> str:
    falling = ", descending" if details["descending"] else ""
    return f"captions are in the order of the ids {details['key']}{falling}, images are not"


def _sorted_by_length(details: dict[str, Any], _place: Place) -> str:
    return f"captions are sorted {details['key']}, images are not"


def _count(d: int) -> str:
    return "1 row" if abs(d) == 1 else f"{abs(d):,} rows"


_SPECIAL: dict[str, Callable[[dict[str, Any], Place], str]] = {
    "shifted": _shifted,
    "repeated": _repeated,
    "drifting": _drifting,
    "pieces_shifted": _pieces,
    "swapped_blocks": _swapped,
    "reordered_blocks": _reordered,
    "off_by_number": _by_number,
    "every_nth": _every,
    "by_caption_number": _by_caption,
    "sorted_by_id": _sorted_by_id,
    "sorted_by_text_length": _sorted_by_length,
}
