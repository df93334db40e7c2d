"""Stacked cross attention and the alignment vectors that SGR and SAF start from."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import l2_normalise, linear, root

SMOOTHING = 9.0  # inverse temperature of the attention over regions, as in SCAN and SGRAF


def region_word_cosines(_, images: ImageCode, texts: TextCode) -> Float[Array, "I R C L"]:
    """Of each region of each image with each word of each caption; the first stage of a head that
    attends to regions."""
    return jnp.einsum("ird,cld->ircl", images.regions, texts.words)


def attend_regions(
    cosines: Float[Array, "I R C L"],
    regions: Float[Array, "I R D"],
    region_mask: Float[Array, "I R"],
    mask: Float[Array, "C L"],
) -> Float[Array, "I C L D"]:
    """For each word of each caption, the region mixture of each image that answers it, unit length.

    Mixed by `region_weights`. Results at padded words are finite and meaningless.
    """
    return l2_normalise(mix_regions(region_weights(cosines, region_mask, mask), regions))


@jax.custom_vjp
def mix_regions(
    weights: Float[Array, "I R C L"], regions: Float[Array, "I R D"]
) -> Float[Array, "I C L D"]:
    """Weighted sums of each image's regions.

    The gradients (reverse mode alone) are what autodiff finds, in an order of axes that a CPU need
    not transpose: a third of the time.
    """
    return jnp.einsum("ircl,ird->icld", weights, regions)


def _mix_backward(inputs: tuple, slopes: Float[Array, "I C L D"]) -> tuple:
    weights, regions = inputs
    of_weights = jnp.einsum("icld,ird->iclr", slopes, regions)
    return jnp.moveaxis(of_weights, 3, 1), jnp.einsum("ircl,icld->ird", weights, slopes)


mix_regions.defvjp(lambda *inputs: (mix_regions(*inputs), inputs), _mix_backward)


def mixture_norms(
    weights: Float[Array, "I R C L"], products: Float[Array, "I R R"]
) -> Float[Array, "I C L"]:
    """Norms of `mix_regions(weights, regions)` without the mixtures, from the regions' `products`:
    R numbers a region in place of D.

    In full precision. Squares have half the digits: a norm below 3e-4 of the sum of its weights,
    of regions that cancel, is taken for that much.
    """
    exact = jax.lax.Precision.HIGHEST
    mixed = jnp.einsum("irs,iscl->ircl", products, weights, precision=exact)
    largest = jax.lax.stop_gradient(jnp.sum(weights, axis=1) ** 2)
    least = jnp.finfo(weights.dtype).eps * largest
    return root(jnp.maximum(jnp.sum(weights * mixed, axis=1), least))


@jax.custom_vjp
def squared_difference(
    context: Float[Array, "I C L D"], words: Float[Array, "C L D"]
) -> Float[Array, "I C L D"]:
    """`(context - words) ** 2`.

    The gradient of the words (reverse mode alone) is, on a CPU, summed over images by a product:
    as a reduction over the first axis it takes up to twenty times as long there.
    """
    return (context - words) ** 2


def _squared_difference_backward(inputs: tuple, slopes: Float[Array, "I C L D"]) -> tuple:
    context, words = inputs
    slopes = 2 * slopes * (context - words)
    of_words = jax.lax.platform_dependent(
        slopes, cpu=_sum_by_product, default=partial(jnp.sum, axis=0)
    )
    return slopes, -of_words


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
) -> Float[Array, "I R C L"]:
    """How much each word of each caption looks at each region of each image.

    Up to a positive factor for each word and image: callers divide what they mix by its length.

    Region-word cosines pass a leaky ReLU, are normalised over the caption's words, sharpened and
    turned into weights over the image's own regions (text-to-image stacked cross attention, SCAN,
    as SGRAF uses it): a softmax that is not divided by its sum. Weights are 1 to e^18: none
    overflows, and beside none does the epsilon of a norm count.
    """
    scores = l2_normalise(jax.nn.leaky_relu(cosines, 0.1) * mask)
    return jnp.exp(SMOOTHING * (scores + 1)) * region_mask[..., None, None]


def alignments(
    params: dict, images: ImageCode, texts: TextCode, cosines: Float[Array, "I R C L"]
) -> Float[Array, "I C L+1 S"]:
    """Global (entry 0) and word-wise alignment vectors of each caption with every image, as they
    are before they get unit length: the stage after `region_word_cosines`.

    Squared differences, projected by `params["overall"]` and `params["local"]`.
    """
    context = attend_regions(cosines, images.regions, images.mask, texts.mask)
    local = linear(params["local"], squared_difference(context, texts.words))
    whole = linear(params["overall"], (images.overall[:, None] - texts.overall) ** 2)
    return jnp.concatenate([whole[:, :, None], local], axis=2)
