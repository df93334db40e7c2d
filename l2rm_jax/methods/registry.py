"""The table of the methods by name."""

from collections.abc import Callable, Mapping
from typing import Any

from l2rm_jax.config import register_settings
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.base import Method
from l2rm_jax.models import RetrievalModel

MakeMethod = Callable[[RetrievalModel, Any], Method]
METHODS: dict[str, MakeMethod] = {}


def register_method(name: str, make: MakeMethod, settings: Mapping[str, Any] | None = None) -> None:
    """Add a method that `config.method` can name.

    Call it where the module that `config.plugins` names is imported; `l2rm_jax/methods/README.md`
    has an example.

    Args:
      name: the new method's name.
      make: `(model, config) -> Method`.
      settings: defaults of the method's own fields, which become `config.own.FIELD`.

    Raises:
      ConfigError: another method has this name.
    """
    if name in METHODS:
        raise ConfigError(
            f"register_method: {name!r} of {make.__module__} is taken by {METHODS[name].__module__}"
        )
    register_settings(make, settings or {})
    METHODS[name] = make


def make_method(model: RetrievalModel, config: Any) -> Method:
    """Make the method that `config.method` names, for this model.

    Raises:
      ConfigError: there is no such method.
    """
    if config.method not in METHODS:
        raise ConfigError(f"method: {config.method!r} is none of {', '.join(METHODS)}")
    return METHODS[config.method](model, config)
