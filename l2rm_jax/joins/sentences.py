"""Say a finding in one sentence, in the rows or lines of the user's table."""

from collections.abc import Callable
from typing import Any

Place = Callable[[int, int], str]  # "Lines 12-40" of the first row and the end
_TEXTS = {
    "shifted": "each caption belongs to {target}",
    "repeated": "the captions are those of {source} again",
    "drifting": "captions are {off_first} off at first and {off_last} at the end; rows of one side "
    "are missing near {near}",
    "pieces_shifted": "{count:,} runs of {least:,} to {most:,} rows are {off} off",
    "swapped_blocks": "{one} and {two} have each other's captions",
    "reordered_blocks": "{count:,} blocks{of_size} of captions are in another order than the "
    "images",
    "modulo": "captions start again after every {period:,} rows",
    "off_by_number": "captions belong to the image whose number is {distance} {higher}",
    "every_nth": "{which} has the caption of {target}",
    "by_caption_number": "captions {numbers} of each image belong to the image {after}",
    "reversed": "captions are in reverse order",
    "interleaved": "captions were read from {lists} lists in turn",
    "dealt": "captions are in {lists} lists, every {lists}th row each",
    "caption_major": "first captions of all images come first, then all second ones, and so on",
    "sorted_by_id": "captions are in the order of the ids {key}{falling}, images are not",
    "sorted_by_text_length": "captions are sorted {key}, images are not",
    "set_order": "captions are in the order in which a Python set holds the numbers of the ids",
    "seeded_shuffle": "captions were shuffled with {by}, images were not",
    "neighbours": "each two neighbouring images have each other's captions",
    "rolled": "captions start one row from the {edge}, and the last one is at the other end",
    "same_key": "images with the same id, read {key}, have the captions of the {wins} of them",
    "keys_disagree": "captions are not with the image that their own key names ({key})",
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
    text = _TEXTS[kind].format(**details, **_words(details, place))
    if "late" in details:
        text += f", and each is one row {'late' if details['late'] > 0 else 'early'}"
    if "groups" in details:
        text = f"within each of the {details['groups']:,} groups, {text}"
    return f"{span}: {text} ({_rows(rows)})."


def _words(details: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return words for the details that are no words."""
    words: dict[str, Any] = {}
    if "pieces" in details:
        words |= _words_of_pieces(details["pieces"], place)
    if "offset" in details:
        d = details["offset"]
        after, below, higher = (
            ("after", "below", "higher") if d > 0 else ("before", "above", "lower")
        )
        target = f"the row {after}" if abs(d) == 1 else f"a row {_rows(d)} {below}"
        words |= {"target": target, "after": after, "higher": higher, "distance": abs(d)}
    if "phase" in details:
        n, phases = details["n"], len(details["phase"])
        words["which"] = f"every {n}th row" if phases == 1 else f"{phases} of every {n} rows"
    words["falling"] = ", descending" if details.get("descending") else ""
    words["of_size"] = f" of {_rows(details['size'])}" if details.get("size") else ""
    words["numbers"] = ", ".join(map(str, details.get("captions", ())))
    return words


def _words_of_pieces(pieces: list[tuple[int, int, int]], place: Place) -> dict[str, Any]:
    sizes = sorted(b - a for a, b, _ in pieces)
    offsets = sorted({abs(d) for *_, d in pieces})
    near = [place(a, a + 1).lower() for a, *_ in pieces[:3]] + ["..."] * (len(pieces) > 3)
    (a, b, d), (first, end, last) = pieces[0], pieces[-1]
    return {
        "count": len(pieces), "least": sizes[0], "most": sizes[-1], "near": ", ".join(near),
        "off": _rows(offsets[0]) if len(offsets) == 1 else f"{offsets[0]} to {offsets[-1]} rows",
        "off_first": _rows(d), "off_last": _rows(last), "source": place(a + d, b + d).lower(),
        "one": place(a, b).lower(), "two": place(first, end).lower(),
    }  # fmt: skip


def _rows(d: int) -> str:
    return "1 row" if abs(d) == 1 else f"{abs(d):,} rows"
