"""Mismatches that experiments make: which image each caption is stored with.

* image, caption: as `mismatch.protocol`; mixed is half of the rate of each.
* hard: a caption is stored with one of the images ranked 2 to 20 by its similarity to the mean of
  their own captions.
* similar: the same with ranks 20 to 200.
* noun: two captions that share a noun change places. LEMoN copies a caption that shares a noun
  over another one; here each caption stays once, as equal texts would put their images in a group.

References:
    Zhang et al., LEMoN: Label Error Detection using Multimodal Neighbors, ICML 2025, and the
    authors' code, https://github.com/MLforHealth/LEMoN: a noun of the caption at random, then a
    caption with that noun at random; nouns are lower-case forms of common nouns.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data import mismatch
from l2rm_jax.linear.rows import unit_rows

RANKS = {"hard": (2, 20), "similar": (20, 200)}
_COMMON_NOUNS = "NN", "NNS"  # tags of the Penn Treebank


def mismatched(
    protocol: str,
    rate: float,
    seed: int,
    own: Int[np.ndarray, " pairs"],
    captions: Float[np.ndarray, "pairs dc"],
    texts: Sequence[str],
) -> Int[np.ndarray, " pairs"]:
    """Return the image that each caption is stored with.

    Args:
      protocol: `image`, `caption`, `mixed`, `hard`, `similar` or `noun`.
      rate: share of the captions to mismatch.
      seed: seed of the draws.
      own: image that each caption was written for.
      captions: their vectors; `hard` and `similar` compare them.
      texts: the captions; `noun` reads them.
    """
    images = int(own.max()) + 1
    if protocol in RANKS:
        return hard_mismatch(rate, seed, own, captions, RANKS[protocol])
    if protocol == "noun":
        return noun_mismatch(rate, seed, own, [common_nouns(text) for text in texts])
    if protocol == "mixed":
        half, rng = rate / 2, np.random.default_rng(seed)
        stored = mismatch.generate("image", half, seed, own, images).stored_image
        moved = rng.permutation(len(own))[: int(half * len(own))]
        stored[moved] = stored[rng.permutation(moved)]
        return stored
    return mismatch.generate(protocol, rate, seed, own, images).stored_image


def hard_mismatch(
    rate: float,
    seed: int,
    own: Int[np.ndarray, " pairs"],
    captions: Float[np.ndarray, "pairs dc"],
    ranks: tuple[int, int] = RANKS["hard"],
) -> Int[np.ndarray, " pairs"]:
    """Store some captions with images whose own captions say something similar."""
    rng = np.random.default_rng(seed)
    unit = unit_rows(captions)
    means = np.zeros((own.max() + 1, unit.shape[1]), np.float32)
    np.add.at(means, own, unit)
    means = unit_rows(means)
    chosen = rng.permutation(len(own))[: int(rate * len(own))]
    stored = own.copy()
    first, last = ranks
    for rows in np.array_split(chosen, len(chosen) // 1024 + 1):
        likeness = unit[rows] @ means.T
        likeness[np.arange(len(rows)), own[rows]] = -np.inf
        ranked = np.argsort(-likeness, axis=1)[:, first - 1 : last]
        stored[rows] = ranked[np.arange(len(rows)), rng.integers(0, ranked.shape[1], len(rows))]
    return stored


def noun_mismatch(
    rate: float, seed: int, own: Int[np.ndarray, " pairs"], nouns: Sequence[Sequence[str]]
) -> Int[np.ndarray, " pairs"]:
    """Exchange captions that share a noun, two at a time, until a share `rate` has moved.

    Each caption, in random order, draws one of its nouns, and then a caption of another image that
    has this noun and has not moved. Where fewer captions than asked for find one, fewer move.

    Args:
      rate: share of the captions that move, in [0, 1); one less where the number is odd.
      seed: seed of the draws.
      own: image that each caption was written for.
      nouns: of each caption; one that it has twice is drawn twice as often.

    Returns:
      The image that each caption is stored with.
    """
    rng = np.random.default_rng(seed)
    with_noun = defaultdict(list)
    for caption, words in enumerate(nouns):
        for word in dict.fromkeys(words):
            with_noun[word].append(caption)
    members = {word: np.array(captions) for word, captions in with_noun.items()}
    stored, left = own.copy(), int(rate * len(own)) // 2
    for caption in rng.permutation(len(own)):
        if not left:
            break
        if not nouns[caption] or stored[caption] != own[caption]:
            continue
        others = members[nouns[caption][rng.integers(len(nouns[caption]))]]
        others = others[(stored[others] == own[others]) & (own[others] != own[caption])]
        if len(others):
            other = rng.choice(others)
            stored[[caption, other]] = own[[other, caption]]
            left -= 1
    return stored


def common_nouns(text: str) -> list[str]:
    """Return the common nouns of an English text, in lower case, in their order."""
    from textblob.taggers import PatternTagger  # from the extra `peers`

    return [word.lower() for word, tag in PatternTagger().tag(text) if tag in _COMMON_NOUNS]
