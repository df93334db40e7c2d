"""SAF: similarity attention filtration (Diao et al., AAAI 2021; a backbone of L2RM)."""

from typing import Any

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
from l2rm_jax.models.chunks import map_captions, pairwise
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import l2_normalise, linear, linear_init, tanh_of_logit

MOMENTUM = 0.1
EPSILON = 1e-5


class SAF(SimilarityHead):
    """Similarity of every image with every caption, in [0, 1].

    The gate of an alignment vector is batch-normalised. As in the reference, which loops over the
    captions, the statistics cover one caption with all images, and the running averages are updated
    once per caption; this code makes all these updates at once, in closed form.
    """

    needs_global_vectors = True

    sim_dim: int  # size of an alignment vector

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        params, running_mean, running_var = self._variables(images)
        if train:
            params["running"] = None
        sims, mean, var = map_captions(_score, params, images, texts, self.chunk)
        if train and not self.is_initializing():
            keep, mean = _running_update(mean, self.axis_name)
            _, var = _running_update(var, self.axis_name)
            running_mean.value = keep * running_mean.value + mean
            running_var.value = keep * running_var.value + var
        return sims.T

    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        return tanh_of_logit(sims)

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Gate of each word, distributed over the regions; see `SimilarityHead`.

        The weights of a pair and the gate of its global vectors sum to 1.
        """
        params, *_ = self._variables(images)
        return pairwise(_align)(params, images, texts)

    @nn.compact
    def _variables(self, images: ImageCode) -> tuple[dict, nn.Variable, nn.Variable]:
        """Parameters with the running statistics, and the variables of these."""
        embed_dim = images.regions.shape[-1]
        params: dict[str, Any] = {
            "local": self.param("local", linear_init, embed_dim, self.sim_dim),
            "overall": self.param("overall", linear_init, embed_dim, self.sim_dim),
            "gate": self.param("gate", linear_init, self.sim_dim, 1),
            "gate_scale": self.param("gate_scale", nn.initializers.ones_init(), ()),
            "gate_shift": self.param("gate_shift", nn.initializers.zeros_init(), ()),
            "score": self.param("score", linear_init, self.sim_dim, 1),
        }
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, ())
        running_var = self.variable("batch_stats", "var", jnp.ones, ())
        params["running"] = running_mean.value, running_var.value
        return params, running_mean, running_var


register_head("saf", lambda config: SAF(config.model.sim_dim))


def _score(
    params: dict, images: ImageCode, texts: TextCode
) -> tuple[Float[Array, "C I"], Float[Array, " C"], Float[Array, " C"]]:
    """Scores of captions against every image, and mean and variance of each caption's gates."""
    vectors = alignments(params, images, texts)
    weights, mean, var = _gate(params, vectors, texts)
    filtered = l2_normalise(jnp.einsum("icn,icns->ics", weights, vectors))
    sims = jax.nn.sigmoid(linear(params["score"], filtered)[..., 0])
    return sims.T, mean, var


def _gate(
    params: dict, vectors: Float[Array, "I C N S"], texts: TextCode
) -> tuple[Float[Array, "I C N"], Float[Array, " C"], Float[Array, " C"]]:
    """Gates with a sum of 1 per image and caption, and the statistics that `_score` returns."""
    valid = jnp.pad(texts.mask, ((0, 0), (1, 0)), constant_values=1.0)
    logits = linear(params["gate"], vectors)[..., 0]
    count = len(logits) * jnp.sum(valid, axis=1)
    batch_mean = jnp.einsum("icn,cn->c", logits, valid) / count
    deviation = logits - batch_mean[None, :, None]
    batch_var = jnp.einsum("icn,cn->c", deviation**2, valid) / count
    mean, var = params["running"] or (batch_mean[None, :, None], batch_var[None, :, None])
    gates = params["gate_scale"] * (logits - mean) * jax.lax.rsqrt(var + EPSILON)
    gates = jax.nn.sigmoid(gates + params["gate_shift"]) * valid[None]
    weights = gates / (jnp.sum(gates, axis=2, keepdims=True) + 1e-8)
    return weights, batch_mean, batch_var * (count / (count - 1))


def _align(params: dict, images: ImageCode, texts: TextCode) -> Float[Array, "C I R L"]:
    gates, _, _ = _gate(params, alignments(params, images, texts), texts)
    cosines = region_word_cosines(images, texts)
    weights = region_weights(cosines, images.mask, texts.mask)
    return align_regions(weights, gates[:, :, 1:])


def _running_update(
    values: Float[Array, " J"], axis_name: str | None
) -> tuple[float, Float[Array, ""]]:
    """Combine B successive updates `r <- (1 - m) r + m v_g` into one, `r <- factor * r + added`.

    `v_g` is the value of caption g of the global batch of B captions; its weight in `added` is
    `m (1 - m) ** (B - 1 - g)`. Returns the factor and `added`.
    """
    local = values.shape[0]
    first, total = 0, local
    if axis_name is not None:
        first = jax.lax.axis_index(axis_name) * local
        total = jax.lax.axis_size(axis_name) * local
    age = (total - 1 - first - jnp.arange(local)).astype(values.dtype)
    added = jnp.sum(MOMENTUM * (1 - MOMENTUM) ** age * values)
    if axis_name is not None:
        added = jax.lax.psum(added, axis_name)
    return (1 - MOMENTUM) ** total, added
