"""Small building blocks shared by the encoders and the heads."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def l2_normalise(x: Float[Array, "..."], axis: int = -1, eps: float = 1e-8) -> Float[Array, "..."]:
    """`x / (|x| + eps)` along `axis`; a zero vector stays zero, with a zero gradient.

    The reference adds `eps` to the norm instead of clipping it.
    """
    return x / (jnp.expand_dims(l2_norm(x, axis), axis) + eps)


def l2_norm(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Euclidean norm along `axis`; a zero vector, which padding is here, has a zero gradient."""
    return root(jnp.sum(x * x, axis=axis))


def root(squared: Float[Array, "..."]) -> Float[Array, "..."]:
    """Square roots; zero, with a zero gradient, of what is not positive."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)


def masked_mean(x: Float[Array, "n l d"], mask: Float[Array, "n l"]) -> Float[Array, "n d"]:
    """Mean over `l` of the entries whose mask is 1 (at least one each)."""
    total = jnp.einsum("nld,nl->nd", x, mask)
    return total / jnp.sum(mask, axis=1, keepdims=True)


def uniform_init(bound: float) -> Callable:
    """Initialiser `(key, shape)`: float32, uniform within `bound` of zero."""
    return lambda key, shape: jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def linear_init(key: Array, inputs: int, outputs: int) -> dict[str, Array]:
    """Parameters of a linear layer, Xavier uniform kernel and zero bias, as the reference."""
    kernel = nn.initializers.xavier_uniform()(key, (inputs, outputs), jnp.float32)
    return {"kernel": kernel, "bias": jnp.zeros((outputs,), jnp.float32)}


def linear(params: dict[str, Array], x: Float[Array, "... i"]) -> Float[Array, "... o"]:
    """`x @ kernel + bias`: a function, so that it can be used inside `jax.lax.map`."""
    return x @ params["kernel"] + params["bias"]


class Linear(nn.Module):
    """`linear` with its own parameters."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "... i"]) -> Float[Array, "... o"]:
        kernel = self.param(
            "kernel", nn.initializers.xavier_uniform(), (x.shape[-1], self.features)
        )
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        return x @ kernel + bias


def sample_keys(key: Array, samples: int, axis_name: str | None) -> Array:
    """A key for each sample of this device: `fold_in(key, i)` for row `i` of the global batch, so
    that noise belongs to the sample and not to the device that holds it."""
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * samples
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(samples))


class Dropout(nn.Module):
    """Dropout with a key for each sample: one device and N devices drop the same units, where
    `nn.Dropout` draws one block per device."""

    rate: float
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "n ..."], train: bool) -> Float[Array, "n ..."]:
        if not train or self.rate == 0.0:
            return x
        keys = sample_keys(self.make_rng("dropout"), x.shape[0], self.axis_name)
        keep = jax.vmap(lambda k: jax.random.bernoulli(k, 1.0 - self.rate, x.shape[1:]))(keys)
        return jnp.where(keep, x / (1.0 - self.rate), 0.0)


class BatchNorm(nn.Module):
    """Batch normalisation over the global batch, with PyTorch's running averages.

    One channel per entry of `channel_axis`; every other axis is averaged over, across devices too.
    PyTorch normalises with the biased variance and records the unbiased one, which
    `nn.BatchNorm` does not. Entries whose mask is 0 are left out of the statistics; a channel
    without any other keeps its running averages.
    """

    channel_axis: int
    axis_name: str | None = None
    momentum: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."], train: bool, mask: Float[Array, "..."] | None = None
    ) -> Float[Array, "..."]:
        channels = x.shape[self.channel_axis]
        shape = [1] * x.ndim
        shape[self.channel_axis] = channels
        scale = self.param("scale", nn.initializers.ones_init(), (channels,)).reshape(shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (channels,)).reshape(shape)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
        if train:
            mask = jnp.ones([1] * x.ndim) if mask is None else mask
            mean, var, count = self._global_moments(x, mask)
            if not self.is_initializing():
                unbiased = var * (count / jnp.maximum(count - 1, 1))
                momentum = jnp.where(count > 0, self.momentum, 0.0)
                running_mean.value += momentum * (mean - running_mean.value)
                running_var.value += momentum * (unbiased - running_var.value)
        else:
            mean, var = running_mean.value, running_var.value
        inverse = jax.lax.rsqrt(var.reshape(shape) + self.epsilon)
        return (x - mean.reshape(shape)) * inverse * scale + bias

    def _global_moments(self, x: Array, mask: Array) -> tuple[Array, Array, Array]:
        """Mean, biased variance and number of entries of each channel; 0 where it has none."""
        axes = tuple(a for a in range(x.ndim) if a != self.channel_axis % x.ndim)
        alike = tuple(a for a in axes if mask.shape[a] == 1)  # plain means first: they round less

        def total(values: Array) -> Array:
            local = jnp.sum(values, axes, keepdims=True)
            return local if self.axis_name is None else jax.lax.psum(local, self.axis_name)

        def mean(values: Array) -> Array:
            values = jnp.mean(values, alike, keepdims=True)
            return total(values * mask) / jnp.maximum(total(mask), 1)

        centre = mean(x)
        count = total(mask) * math.prod(x.shape[a] for a in alike)
        return centre.reshape(-1), mean((x - centre) ** 2).reshape(-1), count.reshape(-1)
