"""A config of all fields with their defaults, and what config files share."""

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

NEEDED_HEADS = {"cca": "linear"}  # methods that work with one head alone
# What the sections are about, in the order in which they are shown; "" has the fields of none.
SECTIONS = dict.fromkeys(
    ("", *(name.rpartition(".")[0] for name in FIELDS if "." in name), "own"), ""
) | {
    "judgement": "Of the pairs, by models that have not seen them (`l2rm_jax/judging`): for "
    "split.by=judgement, data.filter=judgement, train.draw, and `l2rm audit`.",
    "co_teaching": "of ncr and bicro",
    "audit": "of `l2rm audit`; training reads none of it",
    "own": "settings that the plug-ins register",
}
# Sections that not all runs read, and the methods that read them.
READ_BY = {"co_teaching": ("ncr", "bicro"), "sps": ("sps",), "cream": ("cream",), "audit": ()}


def default(plugins: Iterable[str] = ()) -> ConfigDict:
    """The common defaults; a data set must still be named.

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
_importing: list[str] = []  # plug-ins whose import is under way, innermost last


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
                f"plugins: {plugin} cannot be imported ({error}); run the command where the "
                "module lies, or install it"
            ) from error
        except Exception as error:  # a plug-in is a program
            raise ConfigError(
                f"plugins: the import of {plugin} failed: {first_line(error)}"
            ) from error
        finally:
            _importing.pop()
        for module, settings in _settings.items():
            if module == plugin or module.startswith(f"{plugin}."):  # imported before, by itself
                own |= settings
    return own


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a config by dotted key: `train.epochs`."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, ConfigDict | Mapping)
        values |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return values


def unknown_field_error(key: str, known: Iterable[str], where: str = "") -> ConfigError:
    """Error for a field that does not exist; the hint is the field with the most similar spelling.

    Args:
      key: the field, without `config.`.
      known: the fields that there are.
      where: put before the field, the name of a file for example.
    """
    section, names = key.rpartition(".")[0], list(known)
    others = [name for name in names if section and name.startswith(f"{section}.")]
    expected = f"one of {section}'s {len(others)}" if others else "one that l2rm --help lists"
    [nearest] = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
    return ConfigError(
        f"{where}config.{key}: no such field, expected {expected}", hint=f"config.{nearest}"
    )


def check_variant(config: str, arg: str | None, *known: str) -> None:
    """Check the variant of a config (`--config=CONFIG:VARIANT`).

    Args:
      config: CONFIG: the name of a shipped config, or `__file__` in a file of your own.
      arg: the variant; None or "" without one.
      *known: the variants of this config.

    Raises:
      ConfigError: the config has no such variant; the message names those that it has.
    """
    if arg and arg not in known:
        names = ", ".join(f"{config}:{name}" for name in known)
        nearest = difflib.get_close_matches(arg, known, n=1)
        raise ConfigError(
            f"{config}:{arg}: no such variant, expected {config} or {names}",
            hint=f"--config={config}:{nearest[0]}" if nearest else None,
        )


def epoch_fields(warmup: int, epochs: int) -> dict[str, int]:
    """Return fields: the length of a run, and when methods of two networks start their parts.

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
    """The built-in data set, at sizes that a laptop CPU trains in two minutes.

    Args:
      arg: "quick" makes a run of half a minute, which shows every step of a run but learns little;
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
