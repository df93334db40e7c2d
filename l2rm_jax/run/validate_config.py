"""Types and ranges of the config fields, independent of the data and the method."""

import math
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config import FIELDS, default, flat
from l2rm_jax.errors import ConfigError

_LARGEST_INT = 2**31 - 1  # devices use 32-bit integers


def check_fields(config: ConfigDict) -> None:
    """Check the type and the range of every field.

    Names of methods, heads, protocols and the like are checked by `inputs.check_settings`.

    Raises:
      ConfigError: one message for each invalid field, with its value and the expected ones; or
        the run would have no epoch at all.
    """
    problems = list(_field_problems(config).values())
    if not problems and config.train.warmup_epochs + config.train.epochs == 0:
        problems.append("train.warmup_epochs, train.epochs: expected at least one epoch in all")
    if problems:
        raise ConfigError(*problems)


def with_valid_fields(config: ConfigDict) -> ConfigDict:
    """Copy of the config with every invalid field reset to its default."""
    values, copy = flat(config), default(config.plugins)
    for name in _field_problems(config):
        del values[name]
    copy.update_from_flattened_dict(values)
    return copy


def _field_problems(config: ConfigDict) -> dict[str, str]:
    """Error message for each field whose value has the wrong type or is out of range."""
    values = flat(config)
    problems = {
        name: f"{name}: found {values[name]!r}, expected {expected}"
        for name, default_value in flat(default(config.plugins)).items()
        if (expected := _expected_type(name, values[name], default_value))
    }
    problems |= {
        name: f"{name}: found {values[name]!r}, expected {field.allowed.words}"
        for name, field in FIELDS.items()
        if name not in problems and field.allowed and not field.allowed.holds(values[name])
    }
    return problems


def _expected_type(name: str, value: Any, default_value: Any) -> str | None:
    """Describe the value that the default's type requires; None if `value` meets it."""
    kind = type(default_value)
    if type(value) is not kind and not (kind is float and type(value) is int):
        return f"a value of type {kind.__name__}"
    if kind is int and abs(value) > _LARGEST_INT:
        return f"{-_LARGEST_INT} to {_LARGEST_INT}"
    if (
        kind is float
        and not math.isfinite(value)
        and (name, value) != ("optim.grad_clip", math.inf)
    ):
        return "a finite number"
    if kind is str and "\0" in value:
        return "text without the character NUL"
    return None
