"""OMIT: partial matching of regions and words by a few Sinkhorn iterations.

Pan et al., "Learning Image-Text Matching with Optimal Partial Transport". Each image and each
caption has a dustbin: its mean vector, or the vector of a caption's first token. Regions and words
without a counterpart on the other side are matched with its dustbin, and such matches do not count.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.chunks import map_captions, pairwise
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import l2_normalise, masked_mean
from l2rm_jax.ot.matching import match

MATCHINGS = ("partial", "full", "prompt", "naive")  # Tab. 4
MARGINS = ("uniform", "intra", "inter", "norm")  # Eq. 7
GLOBAL_VECTORS = ("mean", "first")
ITERATIONS = 3  # Algorithm A1


class OMIT(SimilarityHead):
    """Similarity of every image with every caption, in [-1, 1]: the cosines that the plan moves.

    Attributes:
      matching: "partial" uses the mean vectors as dustbins and counts only the mass between regions
        and words (Eq. 5); "full" also counts the mass of the dustbins; "prompt" uses two learned
        vectors as dustbins; "naive" has no dustbins.
      margins: rule for the weights of regions and words, see `_importance`. A dustbin has the mean
        weight of an item.
      epsilon: lambda in the paper.
      global_vector: dustbin of a caption: the "mean" of its words, or its "first" word, which is
        the state of `[CLS]` in a BERT.
    """

    choices: ClassVar = {
        "matching": MATCHINGS,
        "margins": MARGINS,
        "global_vector": GLOBAL_VECTORS,
    }

    matching: str
    margins: str
    epsilon: float
    global_vector: str = "mean"

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        return self._map(_score, images, texts, self.sparse_gradient).T

    def plans(self, images: ImageCode, texts: TextCode) -> Float[Array, "J I bins_R bins_L"]:
        """The plans behind the similarities, dustbins first."""
        length = texts.mask.shape[1] + 1

        def plan_chunk(*inputs):
            plan, _ = _plan(*inputs)
            padding = length - plan.shape[-1]
            return jnp.swapaxes(jnp.pad(plan, ((0, 0),) * 3 + ((0, padding),)), 0, 1)

        return self._map(plan_chunk, images, texts)

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """The plan between regions and words; see `SimilarityHead`.

        The weights of a pair sum to 1 without dustbins (`matching="naive"`), else to less.
        """

        def align(*inputs):
            plan, _ = _plan(*inputs)
            return jnp.swapaxes(plan, 0, 1)[..., 1:, 1:]

        return pairwise(self._with_settings(align))((), *self._with_dustbins(images, texts))

    def _map(
        self, function: Callable, images: ImageCode, texts: TextCode, sparse_gradient: bool = False
    ) -> Array:
        """Apply `function` to all captions with all images, after adding the dustbins."""
        codes = self._with_dustbins(images, texts)
        function = self._with_settings(function)
        return map_captions(function, (), *codes, self.chunk, sparse_gradient, vectors=False)

    def _with_settings(self, function: Callable) -> Callable:
        return partial(function, self.matching, self.margins, self.epsilon)

    @nn.compact
    def _with_dustbins(self, images: ImageCode, texts: TextCode) -> tuple[ImageCode, TextCode]:
        """Codes with dustbins.

        The dustbin of an image becomes its first region, the dustbin of a caption its global
        vector. "naive" has dustbins too, without weight.
        """
        if self.matching == "prompt":
            init = nn.initializers.normal(1.0)
            learned = self.param("dustbins", init, (2, images.regions.shape[-1]))
            sizes = (len(images.mask), len(texts.mask))
            bins = [jnp.tile(x, (n, 1)) for x, n in zip(l2_normalise(learned), sizes, strict=True)]
        else:
            caption = texts.words[:, 0]
            if self.global_vector == "mean":
                caption = masked_mean(texts.words, texts.mask)
            bins = masked_mean(images.regions, images.mask), caption
        # Concatenated here, once for all chunks: in each chunk, this copy would take as long as the
        # scores. The mask of the regions does not include the dustbin.
        regions = jnp.concatenate([bins[0][:, None], images.regions], axis=1)
        return images.replace(regions=regions), texts.replace(overall=bins[1])


def _make(config) -> OMIT:
    settings = config.model
    matching = settings.matching, settings.margins, settings.match_epsilon
    return OMIT(*matching, settings.global_vector)


register_head("omit", _make)


def _plan(
    matching: str, margins: str, epsilon: float, _, images: ImageCode, texts: TextCode
) -> tuple[Float[Array, "I C bins_R bins_L"], Float[Array, "I C bins_R bins_L"]]:
    """Plan and inner products of each caption with each image, dustbins first.

    The dustbin of an image is its first region, the dustbin of a caption its global vector.
    """
    words = jnp.concatenate([texts.overall[:, None], texts.words], axis=1)
    sims = jnp.einsum("ird,cld->icrl", images.regions, words)
    region_importance, word_importance = _importance(margins, images, texts)
    weigh = partial(_weights, dustbin=matching != "naive")
    a, b = weigh(region_importance, images.mask[:, None]), weigh(word_importance, texts.mask[None])
    return match(1.0 - sims, a, b, epsilon=epsilon, iterations=ITERATIONS), sims


def _score(matching: str, *inputs) -> Float[Array, "C I"]:
    plan, sims = _plan(matching, *inputs)
    moved = plan * sims
    return jnp.sum(moved if matching == "full" else moved[..., 1:, 1:], axis=(2, 3)).T


def _importance(
    margins: str, images: ImageCode, texts: TextCode
) -> tuple[Float[Array, " I #C R"], Float[Array, "#I C L"]]:
    """Importance of regions and words; their weights are proportional to it (Eq. 7, tau = 1).

    "uniform": 1. "intra" and "inter": the exponential of the inner product with the mean vector of
    the same side or of the other side. "norm": the norm of the vector before it was scaled to unit
    length.
    """
    if margins == "uniform":
        return images.mask[:, None], texts.mask[None]
    if margins == "norm":
        return images.norms[:, None], texts.norms[None]
    regions = images.regions[:, 1:]
    image, text = masked_mean(regions, images.mask), masked_mean(texts.words, texts.mask)
    if margins == "intra":
        region_products = jnp.einsum("ird,id->ir", regions, image)[:, None]
        word_products = jnp.einsum("cld,cd->cl", texts.words, text)[None]
    else:
        region_products = jnp.einsum("ird,cd->icr", regions, text)
        word_products = jnp.einsum("id,cld->icl", image, texts.words)
    return jnp.exp(region_products), jnp.exp(word_products)


def _weights(
    importance: Float[Array, "#I #C K"], mask: Float[Array, "#I #C K"], dustbin: bool
) -> Float[Array, "#I #C K+1"]:
    """Weights of the dustbin and of the items, with the sum 1."""
    items = importance * mask
    items = items / jnp.maximum(jnp.sum(items, axis=-1, keepdims=True), 1e-12)
    share = 1.0 / (1.0 + jnp.sum(mask, axis=-1, keepdims=True)) if dustbin else 0.0
    first = jnp.broadcast_to(share, (*items.shape[:-1], 1))
    return jnp.concatenate([first, (1.0 - first) * items], axis=-1)
