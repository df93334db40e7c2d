"""SGR: similarity graph reasoning (Diao et al., AAAI 2021; a backbone of L2RM)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import (
    align_regions,
    alignments,
    region_weights,
    region_word_cosines,
)
from l2rm_jax.models.chunks import keep_for_backward, map_captions, pairwise
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import add_bias, linear, linear_init, tanh_of_logit


class SGR(SimilarityHead):
    """Similarity of every image with every caption, in [0, 1]."""

    needs_global_vectors = True

    sim_dim: int  # size of an alignment vector
    steps: int  # rounds of reasoning

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        params = self._params(images)
        return map_captions(_score, params, images, texts, self.chunk, self.sparse_gradient).T

    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        return tanh_of_logit(sims)

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Weight of each word in the last step, split over the regions; see `SimilarityHead`.

        The weights of a pair and the weight of its global vectors sum to 1. The earlier steps mix
        words with each other, so the weight of a word also reflects other words.
        """
        return pairwise(_align)(self._params(images), images, texts)

    @nn.compact
    def _params(self, images: ImageCode) -> dict:
        embed_dim = images.regions.shape[-1]
        return {
            "local": self.param("local", linear_init, embed_dim, self.sim_dim),
            "overall": self.param("overall", linear_init, embed_dim, self.sim_dim),
            "graph": [
                self.param(f"graph_{i}", _graph_init, self.sim_dim) for i in range(self.steps)
            ],
            "score": self.param("score", linear_init, self.sim_dim, 1),
        }


register_head("sgr", lambda config: SGR(config.model.sim_dim, config.model.sgr_steps))


def _graph_init(key: Array, sim_dim: int) -> dict:
    names = ("query", "key", "update")
    keys = jax.random.split(key, len(names))
    return {name: linear_init(k, sim_dim, sim_dim) for name, k in zip(names, keys, strict=True)}


def _score(params: dict, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    """Scores of captions against every image.

    Only the global node is read out, so the last step updates no other node.
    """
    nodes, edges = _reason(params, images, texts)
    whole = jax.nn.relu(_update(params["graph"][-1], edges, nodes))
    return jax.nn.sigmoid(linear(params["score"], whole[:, :, 0])[..., 0]).T


def _align(params: dict, images: ImageCode, texts: TextCode) -> Float[Array, "C I R L"]:
    _, edges = _reason(params, images, texts)
    cosines = region_word_cosines(images, texts)
    weights = region_weights(cosines, images.mask, texts.mask)
    return align_regions(weights, edges[:, :, 0, 1:])


def _reason(
    params: dict, images: ImageCode, texts: TextCode
) -> tuple[Float[Array, "I C N S"], Float[Array, "I C 1 N"]]:
    """Nodes before the last step, and the edges of the global node in the last step."""
    nodes = alignments(params, images, texts)
    *steps, last = params["graph"]
    for step in steps:
        updated = _update(step, _edges(step, nodes, nodes, texts), nodes)
        nodes = jax.nn.relu(keep_for_backward(updated, 2, texts))
    return nodes, _edges(last, nodes[:, :, :1], nodes, texts)


def _edges(
    params: dict,
    queries: Float[Array, "I C N S"],
    nodes: Float[Array, "I C M S"],
    texts: TextCode,
) -> Float[Array, "I C N M"]:
    """Weights of all nodes for each query, with a sum of 1; 0 at padded words.

    The graph is fully connected. The edge logits `(x_n Wq + bq) . (x_m Wk + bk)` are computed as
    `(x_n Wq Wk' + bq Wk') . x_m`: one product with a matrix of the parameters instead of two with
    the nodes. The term with `bk` is the same for every m, so the softmax does not depend on it (its
    gradient is exactly zero here, and rounding noise in the reference).
    """
    key_kernel = params["key"]["kernel"]
    folded = queries @ (params["query"]["kernel"] @ key_kernel.T)
    folded = add_bias(folded, key_kernel @ params["query"]["bias"])
    edges = inner_products(folded, nodes)
    mask = jnp.pad(texts.mask > 0, ((0, 0), (1, 0)), constant_values=True)
    return jax.nn.softmax(edges, axis=-1, where=mask[:, None, :])


def _update(
    params: dict, edges: Float[Array, "I C N M"], nodes: Float[Array, "I C M S"]
) -> Float[Array, "I C N S"]:
    """Mixture of the nodes by the edges, projected, without the final ReLU."""
    return linear(params["update"], products(edges, nodes))


# Batched matrix products whose gradients, in reverse mode only, avoid a slow path of XLA on CPUs.


@jax.custom_vjp
def products(a: Float[Array, "... n m"], b: Float[Array, "... m s"]) -> Float[Array, "... n s"]:
    """`a @ b` for each pair of matrices."""
    return a @ b


def _products_backward(factors: tuple, cotangents: Float[Array, "... n s"]) -> tuple:
    a, b = factors
    return cotangents @ _transpose(b), _stored_on_cpu(_transpose(a)) @ cotangents


products.defvjp(lambda *factors: (products(*factors), factors), _products_backward)


@jax.custom_vjp
def inner_products(
    a: Float[Array, "... n s"], b: Float[Array, "... m s"]
) -> Float[Array, "... n m"]:
    """`a @ b.T` for each pair of matrices."""
    return a @ _transpose(b)


def _inner_products_backward(factors: tuple, cotangents: Float[Array, "... n m"]) -> tuple:
    a, b = factors
    return cotangents @ b, _stored_on_cpu(_transpose(cotangents)) @ a


inner_products.defvjp(
    lambda *factors: (inner_products(*factors), factors), _inner_products_backward
)


def _transpose(x: Float[Array, "... n m"]) -> Float[Array, "... m n"]:
    return jnp.swapaxes(x, -1, -2)


def _stored_on_cpu(x: Array) -> Array:
    """Force `x` to be stored as a separate array on a CPU.

    There XLA runs a product on Eigen if the left factor is a transposition, and otherwise on
    YNNPACK. Two Eigen products at the same time take up to ten times as long.
    """
    return jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)
