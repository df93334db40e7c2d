"""Size augmentation: training on a part of an image's regions and of a caption's words.

Pure functions of one sample and its key; OMIT (section 4.1) trains with both, as VSE-infinity.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# What becomes of a word that is picked: OMIT masks 0.1, replaces 0.02 and drops 0.08 of all words.
MASKED, REPLACED = 0.5, 0.1  # shares; the rest is dropped
SHORTEST = 7  # words of a caption, its ends included, below which nothing is changed
# A masked word: the index of padding, whose embedding nothing else looks at.
MASK = 0


def keep_regions(
    key: Array, regions: Float[Array, "R Dv"], count: Int[Array, ""], rate: float
) -> tuple[Float[Array, "R Dv"], Int[Array, ""]]:
    """Leaves out a share of an image's regions, drawn at random; at least one stays.

    Args:
      key: of this image.
      regions: the first `count` rows are regions.
      count: 1 to R.
      rate: the share, in [0, 1); what is kept is rounded down.

    Returns:
      The regions kept, first and in random order, and how many they are.
    """
    noise = jax.random.uniform(key, regions.shape[:1])
    order = jnp.argsort(jnp.where(jnp.arange(len(regions)) < count, noise, jnp.inf))
    kept = jnp.maximum(jnp.floor(count * (1.0 - rate)).astype(count.dtype), 1)
    return regions[order], kept


def perturb_words(
    key: Array, tokens: Int[Array, " L"], length: Int[Array, ""], rate: float, vocabulary_size: int
) -> tuple[Int[Array, " L"], Int[Array, ""]]:
    """Masks, replaces or drops each word of a caption with probability `rate` in all.

    Of the words picked, half become `MASK`, a tenth a random word, and the others are taken out.
    The first and the last token, a caption's ends, stay, as do captions of fewer than five words
    between them.

    Args:
      key: of this caption.
      tokens: the first `length` are the caption.
      length: 1 to L.
      rate: in (0, 1].
      vocabulary_size: random words are drawn from all indices below it.

    Returns:
      The tokens, zero after the end, and how many they are.
    """
    key_fate, key_word = jax.random.split(key)
    at = jnp.arange(len(tokens))
    inner = (at > 0) & (at < length - 1) & (length >= SHORTEST)
    fate = jnp.where(inner, jax.random.uniform(key_fate, tokens.shape) / rate, 1.0)
    other = jax.random.randint(key_word, tokens.shape, 0, vocabulary_size, tokens.dtype)
    tokens = jnp.where(fate < MASKED + REPLACED, other, tokens)
    tokens = jnp.where(fate < MASKED, MASK, tokens)
    gone = ((fate >= MASKED + REPLACED) & (fate < 1.0)) | (at >= length)
    kept = len(tokens) - jnp.sum(gone, dtype=length.dtype)
    tokens = tokens[jnp.argsort(gone, stable=True)]
    return jnp.where(at < kept, tokens, 0), kept
