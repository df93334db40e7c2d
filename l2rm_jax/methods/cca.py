"""CCA as a method: the head `linear` fitted in closed form, without any gradient.

Each epoch of the run fits with one ridge (a constant added to the variances), and validation keeps
the best. With `train.draw=judgement`, pairs are weighted by the probability that they are matched;
with `train.draw=rematched`, rematched pairs are added with their weights. On semi-paired data only
the known pairs are used.

References: as `linear/cca.py`.
"""

from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.base import Method, init_state, model_optimiser
from l2rm_jax.methods.closed_form import FITTED_HEAD, RIDGES
from l2rm_jax.methods.registry import register_method


def make_cca(model, config) -> Method:
    """Make the method; `make_method` adds the fit, as with any method of this head.

    Raises:
      ConfigError: the head is not `linear`.
    """
    if config.model.head != FITTED_HEAD:
        raise ConfigError(
            f"model.head: found {config.model.head!r}, expected {FITTED_HEAD!r} with method=cca",
            hint=f"--config.model.head={FITTED_HEAD}",
        )
    optimiser = model_optimiser(config)
    return Method(
        init=lambda key, batch: init_state(model, optimiser, key, batch), epochs=len(RIDGES)
    )


register_method("cca", make_cca)
