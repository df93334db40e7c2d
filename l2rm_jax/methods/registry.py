"""The table of methods by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from l2rm_jax.config import register_settings
from l2rm_jax.errors import ConfigError, check_names, nearest_name
from l2rm_jax.methods.base import Method
from l2rm_jax.methods.closed_form import FITTED_HEAD, fit_states
from l2rm_jax.methods.networks import LETTERS, same_fit, side_by_side
from l2rm_jax.methods.split import SPLITS
from l2rm_jax.models import RetrievalModel

MakeMethod = Callable[[RetrievalModel, Any], Method]
METHODS: dict[str, MakeMethod] = {}


def register_method(name: str, make: MakeMethod, settings: Mapping[str, Any] | None = None) -> None:
    """Register a method under a name that `config.method` can select.

    Call this at the top level of a module that `config.plugins` names, so that importing the module
    registers the method. `l2rm_jax/methods/README.md` has an example.

    Args:
      name: name of the new method.
      make: `(model, config) -> Method`.
      settings: defaults of the method's own config fields, which become `config.own.FIELD`.

    Raises:
      ConfigError: another method has this name already.
    """
    if name in METHODS:
        raise ConfigError(
            f"register_method: {name!r} of {make.__module__} is already registered by "
            f"{METHODS[name].__module__}; choose another name"
        )
    register_settings(make, settings or {})
    METHODS[name] = make


def make_method(model: RetrievalModel, config: Any) -> Method:
    """Make the method that `config.method` names, for this model.

    Raises:
      ConfigError: there is no such method, or its settings or `split.by` are invalid.
    """
    if config.method not in METHODS:
        raise ConfigError(
            f"method: found {config.method!r}, expected one of {', '.join(METHODS)}",
            hint=nearest_name("method", config.method, METHODS),
        )
    check_names("split", config.split, {"by": SPLITS})
    method = METHODS[config.method](model, config)
    networks = config.train.networks or method.networks
    if networks != method.networks:
        _check_networks(config.method, method, networks)
        method = side_by_side(method, networks)
    if config.model.head != FITTED_HEAD or (config.model.start and method.plan):
        return method
    by_it = config.split.by, config.train.weight
    weighted = config.train.draw != "even" or "judgement" in by_it
    fit = partial(fit_states, weighted=weighted)
    return replace(method, fit=fit if networks == 1 else same_fit(fit, networks))


def _check_networks(name: str, method: Method, networks: int) -> None:
    """Raise `ConfigError` if this many networks cannot be trained side by side."""
    if method.networks > 1:
        expected = f"0, 1 or {method.networks} for {name}"
    elif method.step is None:
        expected = f"0 or 1, as the fit of {name} has a single solution"
    else:
        expected = f"0 to {len(LETTERS)}"
    if method.networks > 1 or method.step is None or not 0 <= networks <= len(LETTERS):
        raise ConfigError(f"train.networks: found {networks}, expected {expected}")
