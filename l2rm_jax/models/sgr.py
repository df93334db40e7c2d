"""SGR: similarity graph reasoning (Diao et al., AAAI 2021; a backbone of L2RM)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import alignments
from l2rm_jax.models.chunks import map_captions
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import linear, linear_init


class SGR(nn.Module):
    """Similarity of every image with every caption, in [0, 1]."""

    sim_dim: int
    steps: int
    chunk: int  # captions scored at once, see `captions_at_once`; results do not depend on it
    few_slopes: bool = False  # see `map_captions`

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
        return map_captions(_score, params, images, texts, self.chunk, self.few_slopes).T


def _graph_init(key: Array, sim_dim: int) -> dict:
    names = ("query", "key", "update")
    keys = jax.random.split(key, len(names))
    return {name: linear_init(k, sim_dim, sim_dim) for name, k in zip(names, keys, strict=True)}


def _score(params: dict, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    """Scores of captions against every image."""
    nodes = alignments(params, images, texts)
    node_mask = jnp.pad(texts.mask > 0, ((0, 0), (1, 0)), constant_values=True)
    for step in params["graph"][:-1]:
        nodes = _reason(step, nodes, nodes, node_mask)
    # Only the global node is read out, so the last step updates only that one.
    nodes = _reason(params["graph"][-1], nodes[:, :, :1], nodes, node_mask)
    return jax.nn.sigmoid(linear(params["score"], nodes[:, :, 0])[..., 0]).T


def _reason(
    params: dict,
    queries: Float[Array, "I C N S"],
    nodes: Float[Array, "I C M S"],
    mask: Float[Array, "C M"],
) -> Float[Array, "I C N S"]:
    """One step of reasoning over the fully connected graph of a caption's alignments.

    The edge logits `(x_n Wq + bq) . (x_m Wk + bk)` are computed as `(x_n Wq Wk' + bq Wk') . x_m`:
    one product with a matrix of the parameters instead of two with the nodes. The term with `bk`
    is the same for every m, so the softmax does not see it (its gradient is exactly zero here, and
    rounding noise in the reference).
    """
    key_kernel = params["key"]["kernel"]
    folded = queries @ (params["query"]["kernel"] @ key_kernel.T)
    folded += key_kernel @ params["query"]["bias"]
    edges = jnp.einsum("icns,icms->icnm", folded, nodes)
    edges = jax.nn.softmax(edges, axis=-1, where=mask[:, None, :])
    return jax.nn.relu(linear(params["update"], jnp.einsum("icnm,icms->icns", edges, nodes)))
