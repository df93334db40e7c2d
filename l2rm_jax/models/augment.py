"""Size augmentation: train on a random subset of the regions and words.

OMIT (section 4.1) trains with both, as VSE-infinity does. The functions are pure: they take one
sample and its random key.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from l2rm_jax.pretrained.specs import PieceIds

# Shares of the picked words that are masked and replaced; the rest is dropped. OMIT masks 0.1,
# replaces 0.02 and drops 0.08 of all words.
MASK_SHARE, REPLACE_SHARE = 0.5, 0.1
MIN_LENGTH = 7  # tokens, both ends included; shorter captions are not changed
# A masked word gets the index of padding, whose embedding is used nowhere else.
MASK_TOKEN = 0


def keep_regions(
    key: Array, regions: Float[Array, "R Dv"], count: Int[Array, ""], rate: float
) -> tuple[Float[Array, "R Dv"], Int[Array, ""]]:
    """Keep a random part of an image's regions, at least one.

    Args:
      key: random key of this image.
      regions: the first `count` rows are regions, the others padding.
      count: number of regions, 1 to R.
      rate: share of the regions to leave out, in [0, 1). The number kept is rounded down.

    Returns:
      All rows in a new order, with the kept regions first and in random order, and their number.
    """
    noise = jax.random.uniform(key, regions.shape[:1])
    order = jnp.argsort(jnp.where(jnp.arange(len(regions)) < count, noise, jnp.inf))
    kept = jnp.floor(count.astype(jnp.float32) * (1.0 - rate)).astype(count.dtype)
    new_count = jnp.maximum(kept, 1)
    return regions[order], new_count


def perturb_words(
    key: Array,
    tokens: Int[Array, " L"],
    length: Int[Array, ""],
    rate: float,
    vocabulary_size: int,
    ids: PieceIds | None = None,
) -> tuple[Int[Array, " L"], Int[Array, ""]]:
    """Mask, replace or drop random words of a caption; all pieces of a word are treated equally.

    Each word is picked with probability `rate`. Half of the picked words become the mask token, a
    tenth become random words, and the others are dropped. The first and the last token always
    stay, and captions with fewer than five words between these do not change.

    Args:
      key: random key of this caption.
      tokens: the first `length` entries are the caption, the others padding.
      length: number of tokens, 1 to L.
      rate: probability, in (0, 1].
      vocabulary_size: random words are drawn from the indices 0 to `vocabulary_size - 1`.
      ids: token ids of a pretrained tokenizer with its own mask token; special tokens are never
        drawn. None for a word vocabulary, whose mask token is `MASK_TOKEN`.

    Returns:
      The new tokens, with zeros after the end, and their number.
    """
    fate_key, word_key = jax.random.split(key)
    positions = jnp.arange(len(tokens))
    is_inner = (positions > 0) & (positions < length - 1) & (length >= MIN_LENGTH)
    # Below 1: picked. The value decides what happens to the word.
    noise = jax.random.uniform(fate_key, tokens.shape)
    if ids is not None:
        is_continued = _is_among(ids.continuations, ids.count)[tokens]
        noise = noise[jax.lax.cummax(jnp.where(is_continued, 0, positions))]
    fate = jnp.where(is_inner, noise / rate, 1.0)
    random_words = jax.random.randint(word_key, tokens.shape, 0, vocabulary_size, tokens.dtype)
    mask = MASK_TOKEN if ids is None else ids.mask
    if ids is not None:
        is_special = _is_among(ids.special, ids.count)[random_words]
        random_words = jnp.where(is_special, mask, random_words)
    tokens = jnp.where(fate < MASK_SHARE + REPLACE_SHARE, random_words, tokens)
    tokens = jnp.where(fate < MASK_SHARE, mask, tokens)
    is_dropped = (fate >= MASK_SHARE + REPLACE_SHARE) & (fate < 1.0)
    is_gone = is_dropped | (positions >= length)
    new_length = len(tokens) - jnp.sum(is_gone, dtype=length.dtype)
    tokens = tokens[jnp.argsort(is_gone, stable=True)]
    return jnp.where(positions < new_length, tokens, 0), new_length


def _is_among(ids: tuple[int, ...], count: int) -> Bool[Array, " count"]:
    """Mark each id below `count` that is in `ids`."""
    table = np.zeros(count, bool)
    table[list(ids)] = True
    return jnp.asarray(table)
