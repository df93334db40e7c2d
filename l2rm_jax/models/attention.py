"""Stacked cross attention, and the alignment vectors that SGR and SAF start from."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.chunks import keep_for_backward
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import l2_normalise, linear, safe_sqrt

SMOOTHING = 9.0  # inverse temperature of the attention over regions, as in SCAN and SGRAF


def region_word_cosines(images: ImageCode, texts: TextCode) -> Float[Array, "I R C L"]:
    """Cosines of all regions of all images with all words of all captions."""
    cosines = jnp.einsum("ird,cld->ircl", images.regions, texts.words)
    return keep_for_backward(cosines, 3, texts)


def attend_regions(
    cosines: Float[Array, "I R C L"],
    regions: Float[Array, "I R D"],
    region_mask: Float[Array, "I R"],
    mask: Float[Array, "C L"],
) -> Float[Array, "I C L D"]:
    """Attended region vector of each word in each image: a mixture of regions, of unit length.

    `region_weights` are the weights of the mixture. Results at padded words are finite but have no
    meaning.
    """
    return l2_normalise(mix_regions(region_weights(cosines, region_mask, mask), regions))


@jax.custom_vjp
def mix_regions(
    weights: Float[Array, "I R C L"], regions: Float[Array, "I R D"]
) -> Float[Array, "I C L D"]:
    """Weighted sums of each image's regions.

    The gradients (reverse mode only) equal those of autodiff. Their axes are in an order that a
    CPU need not transpose, which takes a third of the time.
    """
    return jnp.einsum("ircl,ird->icld", weights, regions)


def _mix_backward(inputs: tuple, cotangents: Float[Array, "I C L D"]) -> tuple:
    weights, regions = inputs
    weight_grads = jnp.einsum("icld,ird->iclr", cotangents, regions)
    return jnp.moveaxis(weight_grads, 3, 1), jnp.einsum("ircl,icld->ird", weights, cotangents)


mix_regions.defvjp(lambda *inputs: (mix_regions(*inputs), inputs), _mix_backward)


def mixture_norms(
    weights: Float[Array, "I R C L"], products: Float[Array, "I R R"]
) -> Float[Array, "I C L"]:
    """Norms of `mix_regions(weights, regions)`, computed without these mixtures.

    The inner products of the regions (`products`, in full precision) suffice, and intermediate
    arrays hold R numbers instead of D. A squared norm keeps only half of the digits, so a norm
    below 3e-4 of the sum of its weights, where regions cancel, is raised to that value.
    """
    exact = jax.lax.Precision.HIGHEST
    mixed = jnp.einsum("irs,iscl->ircl", products, weights, precision=exact)
    upper_bound = jax.lax.stop_gradient(jnp.sum(weights, axis=1) ** 2)
    minimum = jnp.finfo(weights.dtype).eps * upper_bound
    return safe_sqrt(jnp.maximum(jnp.sum(weights * mixed, axis=1), minimum))


@jax.custom_vjp
def squared_difference(
    context: Float[Array, "I C L D"], words: Float[Array, "C L D"]
) -> Float[Array, "I C L D"]:
    """`(context - words) ** 2`.

    On a CPU, the gradient of the words (reverse mode only) is summed over the images by a matrix
    product: a reduction over the first axis takes up to twenty times as long there.
    """
    return (context - words[None]) ** 2


def _squared_difference_backward(inputs: tuple, cotangents: Float[Array, "I C L D"]) -> tuple:
    context, words = inputs
    context_grads = 2 * cotangents * (context - words[None])
    sums = jax.lax.platform_dependent(
        context_grads, cpu=_sum_by_product, default=partial(jnp.sum, axis=0)
    )
    return context_grads, -sums


def _sum_by_product(x: Float[Array, "I C L D"]) -> Float[Array, "C L D"]:
    ones = jnp.ones(len(x), x.dtype)
    return jnp.einsum("i,icld->cld", ones, x, precision=jax.lax.Precision.HIGHEST)


squared_difference.defvjp(
    lambda *inputs: (squared_difference(*inputs), inputs), _squared_difference_backward
)


def region_weights(
    cosines: Float[Array, "I R C L"],
    region_mask: Float[Array, "I R"],
    mask: Float[Array, "C L"],
    smoothing: float = SMOOTHING,
) -> Float[Array, "I R C L"]:
    """Attention weights of each word over the regions of each image, not normalised.

    This is the text-to-image stacked cross attention of SCAN, in the form of SGRAF: the cosines
    pass a leaky ReLU, are normalised over the words of the caption, multiplied by `smoothing`, and
    turned into a softmax over the image's regions, but without the division by its sum. Callers
    scale the weighted sum of regions to unit length, so a factor per word and image cancels.

    Weights lie in [1, e^(2 smoothing)]. With `smoothing` up to 20, neither they nor the squares of
    their sums overflow, and the epsilon that is added to a norm is negligible. Padded
    regions have weight 0.
    """
    scores = l2_normalise(jax.nn.leaky_relu(cosines, 0.1) * mask[None, None])
    return jnp.exp(smoothing * (scores + 1)) * region_mask[..., None, None]


def shares(mask: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Equal shares of the regions of an image, or of the words of a caption; 0 in the padding."""
    return mask / jnp.sum(mask, axis=1, keepdims=True)


def align_regions(
    weights: Float[Array, "I R C L"], word_weights: Float[Array, "#I C L"]
) -> Float[Array, "C I R L"]:
    """Distribute the weight of each word over the regions, in proportion to its attention.

    Args:
      weights: attention of each word over the regions, as `region_weights` returns it.
      word_weights: 0 at padded words.
    """
    shares = weights / jnp.sum(weights, axis=1, keepdims=True)
    return jnp.moveaxis(shares * word_weights[:, None], 2, 0)


def alignments(params: dict, images: ImageCode, texts: TextCode) -> Float[Array, "I C N S"]:
    """Unit alignment vectors of each caption with each image: entry 0 is global, then the words.

    They are projected squared differences: `params["overall"]` projects the differences of global
    vectors, `params["local"]` the differences between each word and the regions it attends to.
    """
    cosines = region_word_cosines(images, texts)
    context = attend_regions(cosines, images.regions, images.mask, texts.mask)
    local = linear(params["local"], squared_difference(context, texts.words))
    whole = linear(params["overall"], (images.overall[:, None] - texts.overall[None]) ** 2)
    vectors = jnp.concatenate([whole[:, :, None], local], axis=2)
    return l2_normalise(keep_for_backward(vectors, 2, texts))
