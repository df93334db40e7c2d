"""Methods: how a retrieval model is learned from noisy pairs."""

from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import baseline, l2rm, rcl, rcsl
from l2rm_jax.methods.base import EpochPlan, Method, TrainState

METHODS = {
    "l2rm": l2rm.make,
    "rcl": rcl.make,
    "triplet": baseline.make_triplet,
    "infonce": baseline.make_info_nce,
    "rcsl": rcsl.make_rcsl,
    "rcsl_nc": rcsl.make_rcsl_nc,
}


def make_method(model, config) -> Method:
    """The method that `config.method` names, for this model.

    Raises:
      ConfigError: there is no such method.
    """
    if config.method not in METHODS:
        raise ConfigError(f"method: {config.method!r} is none of {', '.join(METHODS)}")
    return METHODS[config.method](model, config)


__all__ = ["METHODS", "EpochPlan", "Method", "TrainState", "make_method"]
