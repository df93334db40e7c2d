"""Method `focal`: a triplet loss whose hinges are raised to a power, `own.gamma`.

Train with it on the built-in data, where Python finds this module:

l2rm --config.plugins=l2rm_jax.methods.example.focal --config.method=focal
"""

from functools import partial

import jax.numpy as jnp
import numpy as np

from l2rm_jax import register_method
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import EpochPlan, Method
from l2rm_jax.methods.base import init_state, model_optimiser, plain_step


def focal_triplet(sims, *, margin: float, gamma: float):
    """Mean of `hinge ** gamma` over all negatives of both directions; `sims` is `[B, B]`."""
    matched = jnp.diagonal(sims)
    of_captions = jnp.maximum(0.0, margin + sims - matched[:, None])
    of_images = jnp.maximum(0.0, margin + sims - matched[None])
    negatives = 1.0 - jnp.eye(len(sims))
    return jnp.sum(negatives * (of_captions**gamma + of_images**gamma)) / len(sims)


def make_focal(model, config) -> Method:
    """The method; every epoch trains on all pairs."""
    if config.own.gamma <= 0:
        raise ConfigError(f"own.gamma: found {config.own.gamma}, expected more than 0")
    optimiser = model_optimiser(config)
    loss = partial(focal_triplet, margin=config.loss.margin, gamma=config.own.gamma)
    return Method(
        init=lambda key, batch: init_state(model, optimiser, key, batch),
        plan=lambda score_pairs, dataset, epoch: EpochPlan({"pairs": np.arange(len(dataset))}),
        step=lambda state, batch: plain_step(model, loss, optimiser, state, batch["pairs"]),
        losses={"pairs": ("loss", loss)},
    )


register_method("focal", make_focal, settings={"gamma": 2.0})
