"""SGR: similarity graph reasoning (Diao et al., AAAI 2021; a backbone of L2RM)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import alignments
from l2rm_jax.models.chunks import keep_for_backward, map_captions
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import linear, linear_init
from l2rm_jax.models.products import inner_products, products


class SGR(SimilarityHead):
    """Similarity of every image with every caption, in [0, 1]."""

    needs_global_vectors = True

    sim_dim: int  # size of an alignment vector
    steps: int  # rounds of reasoning

    @nn.compact
    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        embed_dim = images.regions.shape[-1]
        params = {
            "local": self.param("local", linear_init, embed_dim, self.sim_dim),
            "overall": self.param("overall", linear_init, embed_dim, self.sim_dim),
            "graph": [
                self.param(f"graph_{i}", _graph_init, self.sim_dim) for i in range(self.steps)
            ],
            "score": self.param("score", linear_init, self.sim_dim, 1),
        }
        return map_captions(_score, params, images, texts, self.chunk, self.sparse_gradient).T


register_head("sgr", lambda config: SGR(config.model.sim_dim, config.model.sgr_steps))


def _graph_init(key: Array, sim_dim: int) -> dict:
    names = ("query", "key", "update")
    keys = jax.random.split(key, len(names))
    return {name: linear_init(k, sim_dim, sim_dim) for name, k in zip(names, keys, strict=True)}


def _score(params: dict, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    """Scores of captions against every image.

    Only the global node is read out, so the last step updates only that one.
    """
    nodes = alignments(params, images, texts)
    *steps, last = params["graph"]
    for step in steps:
        nodes = jax.nn.relu(keep_for_backward(_reason(step, nodes, nodes, texts), 2, texts))
    whole = jax.nn.relu(_reason(last, nodes[:, :, :1], nodes, texts))
    return jax.nn.sigmoid(linear(params["score"], whole[:, :, 0])[..., 0]).T


def _reason(
    params: dict,
    queries: Float[Array, "I C N S"],
    nodes: Float[Array, "I C M S"],
    texts: TextCode,
) -> Float[Array, "I C N S"]:
    """One step of reasoning over the graph of a caption's alignments, without the final ReLU.

    The graph is fully connected. The edge logits `(x_n Wq + bq) . (x_m Wk + bk)` are computed as
    `(x_n Wq Wk' + bq Wk') . x_m`: one product with a matrix of the parameters instead of two with
    the nodes. The term with `bk` is the same for every m, so the softmax does not depend on it (its
    gradient is exactly zero here, and rounding noise in the reference).
    """
    key_kernel = params["key"]["kernel"]
    folded = queries @ (params["query"]["kernel"] @ key_kernel.T)
    folded += key_kernel @ params["query"]["bias"]
    edges = inner_products(folded, nodes)
    mask = jnp.pad(texts.mask > 0, ((0, 0), (1, 0)), constant_values=True)
    edges = jax.nn.softmax(edges, axis=-1, where=mask[:, None, :])
    return linear(params["update"], products(edges, nodes))
