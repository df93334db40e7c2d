"""What a judgement says, in sentences."""

import math
from bisect import bisect
from collections.abc import Sequence
from typing import NamedTuple

from l2rm_jax.judging.judgement import PLACEHOLDER, Judgement
from l2rm_jax.judging.placeholders import Placeholder
from l2rm_jax.judging.shift import Shift

_SEEN = 0.5, 0.9  # recall from which on a mechanism is seen in part, and seen
_HELP = (
    "More pairs would help, or vectors of an encoder that was trained on many pairs of images and "
    "texts"
)


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


def doubted_list(judgement: Judgement) -> DoubtedList:
    """What the list of the most doubtful pairs holds."""
    pairs, order = judgement.listed, judgement.order
    posterior = judgement.posterior[order[judgement.kind[order] != PLACEHOLDER]]
    if not pairs:
        return DoubtedList(0, 0.0, math.nan)
    listed = float(posterior[:pairs].sum())
    return DoubtedList(pairs, listed / max(float(posterior.sum()), 1e-12), 1 - listed / pairs)


def verdict(judgement: Judgement, ids: Sequence[str] | None = None) -> list[str]:
    """How many pairs are mismatched, what the list holds, what is not seen and how much it may be.

    Args:
      judgement: of the pairs.
      ids: what the user calls each image; None: by its row.
    """
    if judgement.cannot_tell and not judgement.ranks:
        first = [
            "Cannot tell which pairs are mismatched, or how many: "
            f"{judgement.cannot_tell}. {_HELP}."
        ]
    elif judgement.cannot_tell:
        first = [
            "The list can be used: a pair that is mismatched at random comes before a matched one "
            f"in at least {100 * judgement.auroc:.0f} of 100 cases.",
            f"Cannot tell how many pairs are mismatched: {judgement.cannot_tell}. {_HELP}.",
        ]
    else:
        first = [rate_sentence(judgement), _list_sentence(judgement)]
    if judgement.mechanisms and (not judgement.cannot_tell or judgement.ranks):
        first.append(_blind_sentence(judgement))
    if not judgement.cannot_tell and judgement.rate.high < judgement.at_most < 1:
        first.append(_bounds_sentence(judgement))
    if judgement.placeholders:
        first.append(_placeholder_sentence(judgement.placeholders, ids))
    return first


def rate_sentence(judgement: Judgement) -> str:
    """The rate with its interval."""
    rate = judgement.rate
    return (
        f"{100 * rate.estimate:.1f}% of the pairs fit no better than random ones "
        f"(90%: {100 * rate.low:.1f} to {100 * rate.high:.1f})."
    )


def _list_sentence(judgement: Judgement) -> str:
    pairs, holds, false_alarms = doubted_list(judgement)
    if not pairs:
        return "No list of doubted pairs would have fewer than 1 false alarm in 10."
    often = f"1 in {1 / false_alarms:.0f}" if false_alarms >= 0.01 else "fewer than 1 in 100"
    return f"The first {pairs:,} hold {holds:.0%} of them; {often} of these is a false alarm."


def _blind_sentence(judgement: Judgement) -> str:
    [near] = [each for each in judgement.mechanisms if each.name == "near"]
    if not math.isfinite(near.recall):
        return "Captions of a similar image are not seen."
    if judgement.cannot_tell:
        return "Captions of a similar image may not be seen."
    seen = ("not seen", "seen in part", "seen")[bisect(_SEEN, near.recall)]
    # Without the share, which beside that of the list would look like another answer.
    return f"Captions of a similar image are {seen}, by a test with such pairs."


def _bounds_sentence(judgement: Judgement) -> str:
    return (
        f"At least {100 * judgement.rate.low:.1f}% of the pairs are mismatched, and at most "
        f"{100 * judgement.at_most:.1f}% if captions were swapped among similar images."
    )


def _placeholder_sentence(found: Sequence[Placeholder], ids: Sequence[str] | None) -> str:
    """Which picture stands with many captions; of several, the one with most."""
    most, others = found[0], len(found) - 1
    name = f"row {most.row:,}" if ids is None else ids[most.row]
    more = f", as of {others:,} more pictures" if others else ""
    return (
        f"The same picture ({name}) stands with {most.pairs:,} captions "
        f"that have nothing in common: these pairs are left out of all other numbers{more}."
    )


def shift_sentence(shift: Shift) -> str:
    """Which rows are shifted, and where their images are."""
    rows = "the row" if abs(shift.offset) == 1 else f"{abs(shift.offset)} rows"
    where = f"{rows} {'after' if shift.offset > 0 else 'before'}"
    return f"Rows {shift.first:,} to {shift.last:,}: the captions fit the images of {where}."
