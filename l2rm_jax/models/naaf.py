"""NAAF: score words with a similar region positively, and words without one negatively.

Zhang et al., "Negative-Aware Attention Framework for Image-Text Matching", CVPR 2022, as its public
code computes it (CrossmodalGroup/NAAF). The boundary between the two is `naaf_threshold.py`.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models import naaf_threshold
from l2rm_jax.models.attention import mixture_norms, region_weights, region_word_cosines, shares
from l2rm_jax.models.chunks import map_captions, pairwise
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head

SMOOTHING = 20.0  # lambda in the paper
PROPAGATION = 5.0  # inverse temperature of the attention among the words of a caption, in tests


class NAAF(SimilarityHead):
    """Similarity of every image with every caption: the mean over words of three parts.

    For a word with the cosines s_k to the regions, and the threshold t:

    - mismatch: min(0, max_k s_k - t). In evaluation it counts only if the mean of max_k s_k - t
      over similar words of the caption is negative.
    - features: cosine of the word with the regions above t, mixed by exp(20 s_k).
    - relevance: mean of s_k under the attention of SCAN, at smoothing 20.

    Training scores with `threshold`, evaluation with `safe_threshold`; both are kept with the
    statistics of the batches. No gradient goes through them.

    Attributes:
      threshold_by: "paper" or "code", see `naaf_threshold.py`.
    """

    needs_region_products = True

    threshold_by: str

    def setup(self):
        self.threshold, self.safe_threshold = (
            self.variable("batch_stats", name, jnp.zeros, ())
            for name in ("threshold", "safe_threshold")
        )

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        if not train:
            return self._scores(images, _with_threshold(texts, self.safe_threshold.value), False)
        codes = jax.lax.stop_gradient((images, texts))
        start = naaf_threshold.Thresholds(self.threshold.value, self.safe_threshold.value)
        if self.threshold_by == "code":
            score = partial(_score_caption, codes[0])
            used, after = naaf_threshold.by_caption(score, *codes, start, self.axis_name)
            sims = self._scores(images, _with_threshold(texts, used), True)
        else:
            sims = self._scores(images, _with_threshold(texts, start.threshold), True)
            scores = jax.lax.stop_gradient(sims)
            after = naaf_threshold.by_batch(scores, *codes, start, self.axis_name)
        if not self.is_initializing():
            self.threshold.value, self.safe_threshold.value = after
        return sims

    def _scores(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        score = partial(_score, train)
        sparse = self.sparse_gradient and train
        return map_captions(score, (), images, texts, self.chunk, sparse, vectors=False).T

    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        """Hyperbolic tangent of half the similarity."""
        return jnp.tanh(sims / 2)

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Mean of the weights of the features and of the relevance; see `SimilarityHead`.

        A word without a region above the threshold has only the relevance half.
        """
        texts = _with_threshold(texts, self.safe_threshold.value)
        return pairwise(_align)((), images, texts)


register_head("naaf", lambda config: NAAF(config.naaf.threshold))


def _with_threshold(texts: TextCode, threshold: Float[Array, "*J"]) -> TextCode:
    """Store each caption's threshold as its global vector, to pass it to the scoring."""
    thresholds = jnp.broadcast_to(threshold, len(texts.mask))
    return texts.replace(overall=jax.lax.stop_gradient(thresholds[:, None]), norms=None)


def word_parts(
    cosines: Float[Array, "I R C L"],
    products: Float[Array, "I R R"],
    mask: Float[Array, "I R"],
    word_mask: Float[Array, "C L"],
    threshold: Float[Array, "C 1"],
) -> tuple[Float[Array, "I C L"], Float[Array, "I C L"], Float[Array, "I C L"]]:
    """Largest cosine minus the threshold, and the parts by features and by relevance.

    Values at padded words are finite and meaningless.
    """
    above = naaf_threshold.largest_cosines(cosines, mask) - threshold[None]
    weights = feature_weights(cosines, mask, threshold)
    norms = mixture_norms(weights, products)
    features = jnp.sum(weights * cosines, axis=1) / jnp.maximum(norms, 1e-8)
    relevance = jnp.sum(_relevance_weights(cosines, mask, word_mask) * cosines, axis=1)
    return above, features, relevance


def feature_weights(
    cosines: Float[Array, "I R C L"], mask: Float[Array, "I R"], threshold: Float[Array, "C 1"]
) -> Float[Array, "I R C L"]:
    """Weights of the regions above the threshold; their sum is 1, or 0 if there is none."""
    threshold = threshold[None, None]
    is_above = (cosines > threshold) & (mask[..., None, None] > 0)
    # The inner choice keeps numbers far below the threshold out of the exponential.
    excess = jnp.where(is_above, cosines - threshold, 0.0)
    weights = jnp.where(is_above, jnp.exp(SMOOTHING * excess), 0.0)
    return weights / (jnp.sum(weights, axis=1, keepdims=True) + 1e-8)


def _relevance_weights(
    cosines: Float[Array, "I R C L"], mask: Float[Array, "I R"], word_mask: Float[Array, "C L"]
) -> Float[Array, "I R C L"]:
    weights = region_weights(cosines, mask, word_mask, SMOOTHING)
    return weights / jnp.sum(weights, axis=1, keepdims=True)


def similar_words(words: Float[Array, "C L D"], mask: Float[Array, "C L"]) -> Float[Array, "C L L"]:
    """Attention of each word over the words of its caption: a softmax of five times the cosines."""
    cosines = jnp.einsum("cld,cmd->clm", words, words)
    return jax.nn.softmax(PROPAGATION * cosines, axis=2, where=mask[:, None, :] > 0)


def _score(train: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    cosines = region_word_cosines(images, texts)
    masks = images.mask, texts.mask
    above, features, relevance = word_parts(cosines, images.products, *masks, texts.overall)
    if train:
        mismatch = jnp.minimum(above, 0.0)
    else:
        neighbourhood = jnp.einsum("clm,icm->icl", similar_words(texts.words, texts.mask), above)
        mismatch = jnp.where(neighbourhood < 0, above, 0.0)
    return jnp.einsum("icl,cl->ci", mismatch + features + relevance, shares(texts.mask))


def _score_caption(
    images: ImageCode,
    words: Float[Array, "L D"],
    mask: Float[Array, " L"],
    threshold: Float[Array, ""],
) -> Float[Array, " I"]:
    """Training scores of one caption with every image."""
    texts = TextCode(words[None], mask[None], threshold[None, None])
    return _score(True, (), images, texts)[0]


def _align(_, images: ImageCode, texts: TextCode) -> Float[Array, "C I R L"]:
    cosines = region_word_cosines(images, texts)
    weights = feature_weights(cosines, images.mask, texts.overall)
    weights += _relevance_weights(cosines, images.mask, texts.mask)
    return jnp.moveaxis(weights / 2 * shares(texts.mask)[None, None], 2, 0)
