"""The optimiser of a model: AdamW with groups of rates, a schedule by epoch, and a warm-up."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int

from l2rm_jax.models import REGIONS, WORDS

STEP, COSINE = "step", "cosine"
ADAPTER, ADAPTER_KEYS = "adapter", ("lower", "raise")


@dataclasses.dataclass(frozen=True)
class Optimiser:
    """AdamW after clipping by the global norm, with a rate that falls by epoch.

    Epochs are counted from the latest start: the end of the warm-up (L2RM suppl. Tab. 1, "update
    learning rate"), or of the warm-up of each schedule. By default the rate is divided by 10 every
    `decay_epochs` epochs, as in the reference code.

    Attributes:
      learning_rate: rate before the first decay, and before the first start.
      decay_epochs: epochs between two decays, >= 1.
      starts: ascending epochs, counted from 0, at which the count starts.
      grad_clip: largest global norm of the gradient; infinity switches clipping off.
      weight_decay: decoupled weight decay, multiplied by the learning rate.
      groups: rates of parts of the parameters, relative to the learning rate. A group is the first
        key of a parameter's path; arrays of adapters are the group `ADAPTER` wherever they are.
        With rate 0 a group is frozen: it gets no gradient and has no moments.
      frozen_epochs: number of epochs at the start of the run in which the groups and their adapters
        are not updated; their moments still accumulate.
      cosine_epochs: if n > 0, the rate is not decayed but multiplied by (1 + cos(pi e / n)) / 2 in
        epoch e after a start, for n epochs.
      warmup_steps: number of updates over which the rate rises linearly to its full value.
      beta2: decay of the mean of squared gradients.
      epsilon: added to the root of that mean.
    """

    learning_rate: float
    decay_epochs: int
    starts: tuple[int, ...] = (0,)
    grad_clip: float = np.inf
    weight_decay: float = 0.0
    groups: Mapping[str, float] = dataclasses.field(default_factory=dict)
    frozen_epochs: int = 0
    cosine_epochs: int = 0
    warmup_steps: int = 0
    beta2: float = 0.999
    epsilon: float = 1e-8

    def split(self, params: Any) -> tuple[Any, Any]:
        """Separate trained parameters from the frozen groups; `join` undoes it."""
        if 0 not in self.groups.values():
            return params, {}
        parts: tuple[dict, dict] = ({}, {})
        for path, array in flatten_dict(params).items():
            parts[self._relative_rate(path) == 0][path] = array
        return tuple(map(unflatten_dict, parts))

    def join(self, trained: Any, frozen: Any) -> Any:
        """Merge the two parts that `split` returns."""
        if not frozen:
            return trained
        return unflatten_dict({**flatten_dict(trained), **flatten_dict(frozen)})

    def _relative_rate(self, path: tuple[str, ...]) -> float:
        return self.groups.get(ADAPTER if path[-1] in ADAPTER_KEYS else path[0], 1.0)

    def _chain(self) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(b2=self.beta2, eps=self.epsilon)
        if not np.isfinite(self.grad_clip):
            return adam
        return optax.chain(optax.clip_by_global_norm(self.grad_clip), adam)

    def init(self, params: Any) -> Any:
        """Optimiser state for these parameters."""
        return self._chain().init(self.split(params)[0])

    def rate(self, epoch: Int[Array, ""]) -> Float[Array, ""]:
        """Learning rate of an epoch, after the warm-up by steps."""
        since = jnp.where(epoch < self.starts[0], 0, epochs_since(epoch, self.starts))
        if self.cosine_epochs:
            share = jnp.minimum(since, self.cosine_epochs) / self.cosine_epochs
            return self.learning_rate * (1 + jnp.cos(jnp.pi * share)) / 2
        decays = since // self.decay_epochs
        return self.learning_rate * 0.1 ** decays.astype(jnp.float32)

    def update(self, grads: Any, opt_state: Any, params: Any, epoch: Array) -> tuple[Any, Any]:
        """Update parameters and optimiser state; `grads` covers only the trained parameters."""
        params, frozen = self.split(params)
        with jax.numpy_dtype_promotion("standard"):  # Optax takes floats to integer powers
            updates, opt_state = self._chain().update(grads, opt_state, params)
        rate = self.rate(epoch)
        if self.warmup_steps:  # Adam counts the updates, this one included
            rate = rate * jnp.minimum(1.0, optax.tree.get(opt_state, "count") / self.warmup_steps)

        def descend(part: Any, update: Any, rate: Array) -> Any:
            return jax.tree.map(lambda p, u: p - rate * (u + self.weight_decay * p), part, update)

        if not self.groups:
            return descend(params, updates, rate), opt_state
        moves, updates = jnp.where(epoch < self.frozen_epochs, 0.0, 1.0), flatten_dict(updates)
        moved = {}
        for path, array in flatten_dict(params).items():
            in_base = path[0] in self.groups
            own = rate * self._relative_rate(path) * (moves if in_base else 1.0)
            moved[path] = descend(array, updates[path], own)
        return self.join(unflatten_dict(moved), frozen), opt_state


def epochs_since(epoch: Int[Array, ""], starts: tuple[int, ...]) -> Int[Array, ""]:
    """Epochs since the latest of `starts`; undefined before the first one."""
    since = epoch - jnp.asarray(starts)
    return jnp.min(jnp.where(since >= 0, since, jnp.iinfo(jnp.int32).max))


def model_optimiser(config: Any, starts: tuple[int, ...] | None = None) -> Optimiser:
    """Make the optimiser of the model from `config.optim`.

    Args:
      config: config of the run.
      starts: as in `Optimiser`; None for the end of the warm-up.
    """
    optim, train = config.optim, config.train
    groups = {}
    if config.model.text_encoder != WORDS:
        groups["text_base"] = optim.text_rate
    if config.model.image_encoder != REGIONS:
        groups["image_base"] = optim.image_rate
    if config.model.adapter_rank:
        groups = {**dict.fromkeys(groups, 0.0), ADAPTER: 1.0}
    return Optimiser(
        learning_rate=optim.learning_rate,
        decay_epochs=optim.decay_epochs,
        starts=(train.warmup_epochs,) if starts is None else starts,
        grad_clip=optim.grad_clip,
        weight_decay=optim.weight_decay,
        groups=groups,
        frozen_epochs=optim.base_epochs,
        cosine_epochs=train.epochs if optim.schedule == COSINE else 0,
        warmup_steps=optim.warmup_steps,
        beta2=optim.beta2,
        epsilon=optim.adam_epsilon,
    )
