"""Building blocks that the encoders and the heads share."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def l2_normalise(x: Float[Array, "..."], axis: int = -1, eps: float = 1e-8) -> Float[Array, "..."]:
    """`x / (|x| + eps)` along `axis`; a zero vector stays zero, with a zero gradient.

    As in the reference, `eps` is added to the norm; the norm is not clipped.
    """
    return x / (jnp.expand_dims(l2_norm(x, axis), axis) + eps)


def l2_norm(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Euclidean norm along `axis`; the gradient at a zero vector, such as padding, is zero."""
    return safe_sqrt(jnp.sum(x * x, axis=axis))


def safe_sqrt(squared: Float[Array, "..."]) -> Float[Array, "..."]:
    """Square root; zero, with a zero gradient, where `squared` is not positive."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)


def masked_mean(x: Float[Array, "n l d"], mask: Float[Array, "n l"]) -> Float[Array, "n d"]:
    """Mean over `l` of the entries whose mask is 1; each row needs at least one."""
    total = jnp.einsum("nld,nl->nd", x, mask)
    return total / jnp.sum(mask, axis=1, keepdims=True)


def uniform_init(bound: float) -> Callable:
    """Initialiser `(key, shape) -> array`: float32, uniform in [-bound, bound)."""
    return lambda key, shape: jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def linear_init(key: Array, inputs: int, outputs: int) -> dict[str, Array]:
    """Parameters of a linear layer: Xavier-uniform kernel and zero bias, as in the reference."""
    kernel = nn.initializers.xavier_uniform()(key, (inputs, outputs), jnp.float32)
    return {"kernel": kernel, "bias": jnp.zeros((outputs,), jnp.float32)}


def linear(params: dict[str, Array], x: Float[Array, "... i"]) -> Float[Array, "... o"]:
    """`x @ kernel + bias`; a function, not a module, so `jax.lax.map` can call it."""
    return add_bias(x @ params["kernel"], params["bias"])


def add_bias(x: Float[Array, "... o"], bias: Float[Array, " o"]) -> Float[Array, "... o"]:
    """`x + bias`, along the last axis."""
    return x + jax.lax.broadcast_to_rank(bias, x.ndim)


class Linear(nn.Module):
    """Linear layer: `linear` with its own parameters; `use_bias` says whether it adds a bias."""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... i"]) -> Float[Array, "... o"]:
        kernel = self.param(
            "kernel", nn.initializers.xavier_uniform(), (x.shape[-1], self.features)
        )
        if not self.use_bias:
            return x @ kernel
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        return add_bias(x @ kernel, bias)


def sample_keys(key: Array, samples: int, axis_name: str | None) -> Array:
    """One random key for each of this device's samples: `fold_in(key, row in the global batch)`.

    The noise of a sample then does not depend on the device that holds it.

    Args:
      key: the same on all devices.
      samples: number of samples on this device.
      axis_name: mapped axis of the devices, or None.
    """
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * samples
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(samples))


class Dropout(nn.Module):
    """Dropout with a random key for each sample.

    One device and N devices drop the same units. `nn.Dropout` would draw one block per device.
    """

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

    Statistics are taken over every axis but `channel_axis`, and across devices. Like PyTorch and
    unlike `nn.BatchNorm`, it normalises with the biased variance and records the unbiased one.
    Entries whose mask is 0 are ignored; a channel without any entry keeps its running averages.

    Attributes:
      channel_axis: axis with one channel per entry.
      axis_name: mapped axis of the devices, or None.
      momentum: weight of the batch in the running averages.
      epsilon: added to the variance before the square root.
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
        """Mean, biased variance and entry count of each channel; all 0 if it has no entry."""
        axes = tuple(a for a in range(x.ndim) if a != self.channel_axis % x.ndim)
        # Axes along which the mask is constant are averaged first: a plain mean rounds less.
        plain_axes = tuple(a for a in axes if mask.shape[a] == 1)

        def total(values: Array) -> Array:
            local = jnp.sum(values, axes, keepdims=True)
            return local if self.axis_name is None else jax.lax.psum(local, self.axis_name)

        def mean(values: Array) -> Array:
            values = jnp.mean(values, plain_axes, keepdims=True)
            return total(values * mask) / jnp.maximum(total(mask), 1)

        centre = mean(x)
        count = total(mask) * math.prod(x.shape[a] for a in plain_axes)
        return centre.reshape(-1), mean((x - centre) ** 2).reshape(-1), count.reshape(-1)


def tanh_of_logit(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`tanh(logit(x))` of x in [0, 1], in [-1, 1]; the logit itself might be infinite."""
    return (2 * x - 1) / (x**2 + (1 - x) ** 2)
