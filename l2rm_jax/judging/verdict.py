"""Sentences that summarise a judgement for the user."""

import math
from bisect import bisect
from collections.abc import Sequence
from typing import NamedTuple

from l2rm_jax.judging.groups import Placeholder
from l2rm_jax.judging.judgement import PLACEHOLDER, Judgement

_DETECTED = 0.5, 0.9  # recall from which a kind of mismatch is partly detected, and detected
_HELP = "Use more pairs, or embeddings of an encoder that was trained on many image-text pairs"


class SuspiciousList(NamedTuple):
    """The longest list of the most suspicious pairs with at most 10% expected false alarms.

    Attributes:
      pairs: length of the list.
      holds: expected share of all mismatched pairs that the list includes.
      false_alarms: expected share of the list that is matched.
    """

    pairs: int
    holds: float
    false_alarms: float


def suspicious_list(judgement: Judgement) -> SuspiciousList:
    """Return the length of the list of the most suspicious pairs, and what to expect of it."""
    pairs, order = judgement.list_length, judgement.order
    posterior = judgement.posterior[order[judgement.kind[order] != PLACEHOLDER]]
    if not pairs:
        return SuspiciousList(0, 0.0, math.nan)
    listed = float(posterior[:pairs].sum())
    return SuspiciousList(pairs, listed / max(float(posterior.sum()), 1e-12), 1 - listed / pairs)


def verdict(judgement: Judgement, ids: Sequence[str] | None = None) -> list[str]:
    """Return sentences on the mismatch rate, the suspicious pairs and the undetected mismatches.

    Args:
      judgement: the judgement of the pairs.
      ids: the user's name of each image; None: images are named by row.
    """
    if judgement.made.judge:
        first = _kept_sentences(judgement)
    elif judgement.unreliable_reason and not judgement.is_rankable:
        first = [
            "Cannot tell which pairs are mismatched or how many: "
            f"{judgement.unreliable_reason}. {_HELP}."
        ]
    elif judgement.unreliable_reason:
        first = [
            "The ranking is usable: a randomly mismatched pair ranks above a matched pair in at "
            f"least {100 * judgement.auroc:.0f}% of cases.",
            f"Cannot tell how many pairs are mismatched: {judgement.unreliable_reason}. {_HELP}.",
        ]
    else:
        first = [rate_sentence(judgement), _list_sentence(judgement)]
    if judgement.mechanisms and (not judgement.unreliable_reason or judgement.is_rankable):
        first.append(_blind_sentence(judgement))
    is_bounded = judgement.rate.high < judgement.upper_bound < 1 and not judgement.made.judge
    if is_bounded and not judgement.unreliable_reason:
        first.append(_bounds_sentence(judgement))
    if judgement.placeholders:
        first.append(_placeholder_sentence(judgement.placeholders, ids))
    return first


def _kept_sentences(judgement: Judgement) -> list[str]:
    """Return sentences on pairs that a kept judge has judged."""
    rate, listed = judgement.rate, judgement.list_length
    if judgement.unreliable_reason:
        return [f"Cannot tell how many pairs are mismatched: {judgement.unreliable_reason}."]
    low, estimate, high, most = (
        f"{100 * share:.{int(share < 0.1)}f}%"
        for share in (rate.low, rate.estimate, rate.high, judgement.upper_bound)
    )
    pairs = f"{listed:,} pairs fit worse than matched pairs do: 1 in 10 of these is a false alarm."
    return [
        f"At least {low} of the pairs are mismatched, about {estimate}, and at most {high} (90% "
        "CI), captions of similar images included.",
        f"If captions were swapped among the most similar pictures, up to {most}.",
        pairs if listed else "No list of suspicious pairs has fewer than 10% false alarms.",
    ]


def rate_sentence(judgement: Judgement) -> str:
    """Return a sentence with the mismatch rate and its 90% confidence interval."""
    rate, percent = judgement.rate, 100 * judgement.rate.estimate
    return (
        f"About {percent:.{int(percent < 10)}f}% of the pairs match no better than random pairs "
        f"(90% CI: {100 * rate.low:.1f}-{100 * rate.high:.1f}%)."
    )


def _list_sentence(judgement: Judgement) -> str:
    pairs, holds, false_alarms = suspicious_list(judgement)
    if not pairs:
        return "No list of suspicious pairs has fewer than 10% false alarms."
    often = f"about {false_alarms:.0%}" if false_alarms >= 0.01 else "under 1%"
    return (
        f"The {pairs:,} most suspicious pairs include {holds:.0%} of them, with {often} false "
        "alarms."
    )


def _blind_sentence(judgement: Judgement) -> str:
    [near] = [each for each in judgement.mechanisms if each.name == "near"]
    if not math.isfinite(near.recall):
        return "Swaps between similar images are not detected."
    if judgement.unreliable_reason:
        return "Swaps between similar images may go undetected."
    detected = ("not detected", "only partly detected", "detected")[bisect(_DETECTED, near.recall)]
    # Without the recall: next to the list's share of the mismatches it would read as a second one.
    return f"Swaps between similar images are {detected} (measured on simulated swaps)."


def _bounds_sentence(judgement: Judgement) -> str:
    return (
        f"At least {100 * judgement.rate.low:.1f}% of the pairs are mismatched, and at most "
        f"{100 * judgement.upper_bound:.1f}% if captions were also swapped between similar images."
    )


def _placeholder_sentence(found: Sequence[Placeholder], ids: Sequence[str] | None) -> str:
    """Name the placeholder picture with the most captions, and count the others."""
    most, others = found[0], len(found) - 1
    name = f"row {most.row:,}" if ids is None else ids[most.row]
    more = f"; so are the pairs of {others:,} more such pictures" if others else ""
    return (
        f"One picture ({name}) is stored with {most.pairs:,} unrelated captions: "
        f"these pairs are excluded from all other numbers{more}."
    )
