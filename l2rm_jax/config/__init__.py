"""Config fields of a run: default, meaning and allowed values.

* `data`, `model`, `methods` and `training` have one table of fields each; `field` defines `Field`.
* This file makes a config from them and from the settings of plug-ins, and has the functions that
  config files share.

The defaults are the L2RM authors' for Flickr30K at the paper's sizes. A file in `configs/` adapts
them to its data set. Without `--config`, the command line runs `get_config()`. The table of all
fields in `configs/README.md` is generated from here. May import `errors`.
"""

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config.data import DATA
from l2rm_jax.config.methods import METHODS
from l2rm_jax.config.model import MODEL
from l2rm_jax.config.training import TRAINING
from l2rm_jax.errors import ConfigError, first_line

FIELDS = DATA | MODEL | METHODS | TRAINING

NEEDED_HEADS = {"cca": "linear"}  # methods that require a certain head
# Descriptions of the sections, in display order; "" holds the fields without a section.
SECTIONS = dict.fromkeys(
    ("", *(name.rpartition(".")[0] for name in FIELDS if "." in name), "own"), ""
) | {
    "judgement": "judging pairs by models that were not trained on them, for training and "
    "`l2rm audit`",
    "co_teaching": "for the methods ncr and bicro",
    "audit": "for `l2rm audit`; not used in training",
    "own": "fields registered by plug-ins",
}
# Sections that only some methods read, and these methods.
READ_BY = {
    "co_teaching": ("ncr", "bicro"),
    **{name: (name,) for name in ("sps", "cream", "in2r")},
    "audit": (),
}


def default(plugins: Iterable[str] = ()) -> ConfigDict:
    """Make a config with the common defaults; it still has to name a data set.

    Args:
      plugins: modules to import, whose settings become the section `own`.

    Raises:
      ConfigError: a plug-in cannot be imported.
    """
    values: dict[str, Any] = {}
    for section in filter(None, SECTIONS):
        values[section] = {}
    for name, field in FIELDS.items():
        section, _, key = name.rpartition(".")
        (values[section] if section else values)[key] = field.default
    values |= {"plugins": tuple(plugins), "own": import_plugins(plugins)}
    return ConfigDict(values).lock()  # a misspelt field is an error in a config file too


# Settings of plug-ins, by the module that registered them.
_settings: dict[str, dict[str, Any]] = {}
_importing: list[str] = []  # plug-ins being imported, innermost last


def register_settings(make: Callable, settings: Mapping[str, Any]) -> None:
    """Keep the defaults of a plug-in's own fields, which become `config.own.FIELD`.

    They belong to the plug-in being imported, or to the module of `make`.
    """
    owner = _importing[-1] if _importing else make.__module__
    _settings.setdefault(owner, {}).update(settings)


def import_plugins(plugins: Iterable[str]) -> dict[str, Any]:
    """Import modules that register methods, heads and detectors; return their settings.

    Raises:
      ConfigError: a module is missing, or its import fails.
    """
    own: dict[str, Any] = {}
    for plugin in plugins:
        _importing.append(plugin)
        try:
            importlib.import_module(plugin)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"plugins: cannot import {plugin} ({error}); run the command in the directory of "
                "the module, or install it"
            ) from error
        except BaseException as error:  # a plug-in may raise anything
            raise ConfigError(f"plugins: importing {plugin} failed: {first_line(error)}") from error
        finally:
            _importing.pop()
        for module, settings in _settings.items():
            if module == plugin or module.startswith(f"{plugin}."):  # imported earlier
                own |= settings
    return own


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a config to values by dotted key: `train.epochs`."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, ConfigDict | Mapping)
        values |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return values


def unknown_field_error(key: str, known: Iterable[str], where: str = "") -> ConfigError:
    """Make the error for an unknown field; the hint is the field with the most similar spelling.

    Args:
      key: the field, without `config.`.
      known: names of the existing fields.
      where: prefix of the message, for example the name of a file.
    """
    section, names = key.rpartition(".")[0], list(known)
    others = [name for name in names if section and name.startswith(f"{section}.")]
    expected = (
        f"one of the {len(others)} fields of {section}"
        if others
        else "a field listed by l2rm --help"
    )
    [nearest] = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
    return ConfigError(
        f"{where}config.{key}: no such field, expected {expected}", hint=f"config.{nearest}"
    )


def check_variant(config: str, arg: str | None, *known: str) -> None:
    """Check the variant of a config (`--config=CONFIG:VARIANT`).

    Args:
      config: CONFIG: the name of a shipped config, or `__file__` in your own file.
      arg: the variant; None or "" without one.
      *known: the variants of this config.

    Raises:
      ConfigError: the config has no such variant; the message lists its variants.
    """
    if arg and arg not in known:
        names = ", ".join(f"{config}:{name}" for name in known)
        nearest = difflib.get_close_matches(arg, known, n=1)
        raise ConfigError(
            f"{config}:{arg}: unknown variant, expected {config} or {names}",
            hint=f"--config={config}:{nearest[0]}" if nearest else None,
        )


def epoch_fields(warmup: int, epochs: int) -> dict[str, int]:
    """Return the fields for the length of a run and the first epochs of two-network methods.

    Args:
      warmup: epochs of the warm-up.
      epochs: epochs after it.
    """
    quarter, later = epochs // 4, 3 * epochs // 8
    return {
        "train.warmup_epochs": warmup,
        "train.epochs": epochs,
        "co_teaching.mismatched_epoch": epochs // 2,
        "sps.clean_epoch": quarter,
        "sps.noisy_epoch": later,
        "cream.hard_epoch": quarter,
        "cream.noisy_epoch": later,
    }


def set_epochs(config: ConfigDict, warmup: int, epochs: int) -> None:
    """Set the `epoch_fields` of a config."""
    config.update_from_flattened_dict(epoch_fields(warmup, epochs))


def get_config(arg: str | None = None) -> ConfigDict:
    """Make the config of the built-in data set, which a laptop CPU trains in two minutes.

    Args:
      arg: "quick" makes a run of half a minute, which exercises every step but learns little;
        "long" has the batches and epochs of the measured tables.

    Raises:
      ConfigError: any other argument.
    """
    check_variant("scenes", arg, "quick", "long")
    config = default()
    config.data.name = "scenes"
    config.mismatch.rate = 0.4
    config.model.head = "saf"
    config.model.embed_dim = 128
    config.model.word_dim = 64
    config.model.sim_dim = 64
    config.optim.learning_rate = 1e-3
    config.optim.decay_epochs = 8
    if arg == "long":
        config.train.batch_size = 64
        set_epochs(config, warmup=8, epochs=4)
        return config
    config.data.max_words = 20  # one length for all batches, so that a step is compiled once
    config.train.batch_size = 32
    set_epochs(config, warmup=5, epochs=3)
    if arg == "quick":
        config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 100, 20, 50
        set_epochs(config, warmup=2, epochs=2)
    return config
