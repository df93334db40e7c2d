"""Suites: rows (a method and how it is used) on grids of head, mismatch and seed."""

import importlib
import pkgutil
import runpy
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments.benchmark import suites
from experiments.script import plugin_names
from l2rm_jax.config import set_epochs
from l2rm_jax.data import mismatch
from l2rm_jax.errors import ConfigError, L2RMError
from l2rm_jax.models import WORDS
from l2rm_jax.run.config_file import load_config, with_changes


class Row(NamedTuple):
    """A row of the tables.

    Attributes:
      changes: config fields that it sets. A value may be a function of the config, which then
        has all else: the suite's settings, and head, mismatch and seed of the run.
      split: what tells matched pairs from mismatched ones: "" (nothing), loss (the model being
        trained), crossfit, truth.
      config: config that it starts from, with the epochs of that; "" is the suite's.
      drops: whether pairs are dropped; then it has more epochs, for as many updates.
    """

    changes: Mapping[str, Any]
    split: str = ""
    config: str = ""
    drops: bool = False


class Grid(NamedTuple):
    """Rows that are trained in every combination of the rest; `rows` are keys of `Suite.rows`."""

    rows: Sequence[str]
    heads: Sequence[str]
    protocols: Sequence[str]
    rates: Sequence[float]
    seeds: Sequence[int]


class Suite(NamedTuple):
    """A data set and all that is trained on it.

    Attributes:
      config: name of the config that all rows start from.
      rows: rows by name.
      grids: the trained cells; a cell of several grids is trained once.
      settings: config fields that are equal in all rows; `plugins` are imported first.
      epochs: epochs of the warm-up, and after it; None: as in the config.
      needs_path: whether the data lie in a directory.
      needs_pretrained: whether rows have a pretrained encoder, which lies in a directory.
    """

    config: str
    rows: Mapping[str, Row]
    grids: Sequence[Grid]
    settings: Mapping[str, Any] = {}
    epochs: tuple[int, int] | None = None
    needs_path: bool = True
    needs_pretrained: bool = False


class Cell(NamedTuple):
    """One run: its directory's name, its row, and its config."""

    name: str
    row: str
    config: ConfigDict


def suite_names() -> list[str]:
    """Names of the suites, as `--suite` takes them."""
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules(suites.__path__)]


def find_suite(name: str) -> Suite:
    """Return a suite by its name, or the `SUITE` of a file whose path ends in `.py`.

    Raises:
      ConfigError: there is none of that name, or the file has none or fails.
    """
    if name.endswith(".py"):
        return _suite_of_file(Path(name))
    if name not in suite_names():
        raise ConfigError(f"--suite={name}: expected one of {', '.join(suite_names())}")
    return importlib.import_module(f"{suites.__name__}.{name.replace('-', '_')}").SUITE


def _suite_of_file(file: Path) -> Suite:
    if not file.is_file():
        raise ConfigError(f"--suite={file}: no such file, expected one that makes a SUITE")
    try:
        suite = runpy.run_path(str(file)).get("SUITE")
    except L2RMError:
        raise
    except Exception as error:  # the file is a program
        raise ConfigError(f"--suite={file}: {type(error).__name__}: {error}") from error
    if not isinstance(suite, Suite):
        kind = type(suite).__name__
        raise ConfigError(f"--suite={file}: found SUITE of type {kind}, expected a Suite")
    return suite


def cells(suite: Suite, path: Path | None, pretrained: Path | None = None) -> list[Cell]:
    """Return all runs of a suite, seed by seed, so that the first tables are whole early.

    Args:
      suite: the suite.
      path: directory of the data; None where the suite needs none.
      pretrained: directory of a pretrained encoder; None likewise.

    Raises:
      ConfigError: a directory is missing or not needed; or a field of the suite is wrong.
    """
    _check_flag("path", path, suite.needs_path, "DIR, the data")
    _check_flag("pretrained", pretrained, suite.needs_pretrained, "DIR, the pretrained encoder")
    seeds = sorted({seed for grid in suite.grids for seed in grid.seeds})
    made = (cell for seed in seeds for cell in _seed_cells(suite, seed, path, pretrained))
    return list({cell.name: cell for cell in made}.values())


def _check_flag(name: str, value: Path | None, is_needed: bool, meaning: str) -> None:
    if is_needed != (value is not None):
        found = f"--{name}={value}" if value else f"no --{name}"
        expected = f"--{name}={meaning}" if is_needed else "none: the suite needs none"
        raise ConfigError(f"{found}, expected {expected}")


def _seed_cells(suite: Suite, seed: int, *directories: Path | None) -> Iterator[Cell]:
    for grid in suite.grids:
        if seed not in grid.seeds:
            continue
        for rate, protocol, head, row in product(grid.rates, grid.protocols, grid.heads, grid.rows):
            noise = {"protocol": protocol, "rate": rate}
            yield make_cell(suite, row, head, noise, seed, *directories)


_config = cache(load_config)


def make_cell(
    suite: Suite,
    name: str,
    head: str,
    noise: Mapping[str, Any],
    seed: int,
    path: Path | None,
    pretrained: Path | None = None,
) -> Cell:
    """Return the run of a row; its own fields win over the suite's settings, these over the rest.

    Args:
      suite: the suite.
      name: the row.
      head: head of the model, unless the row needs another.
      noise: fields of the section `mismatch`.
      seed: of the run and of the mismatch.
      path: directory of the data.
      pretrained: directory of the encoder, for rows that have one.
    """
    row = suite.rows[name]
    plugins = plugin_names(suite.settings)
    config = _config(row.config or suite.config, plugins).copy_and_resolve_references()
    if suite.epochs and not row.config:
        set_epochs(config, *suite.epochs)
    changes = {f"mismatch.{key}": value for key, value in noise.items()}
    seed = suite.settings.get("seed", seed)
    changes |= {"seed": seed, "mismatch.seed": seed, "model.head": head}
    changes |= {key: value for key, value in suite.settings.items() if key != "plugins"}
    if path:
        changes["data.path"] = str(path.absolute())
    config = with_changes(config, changes)
    config = with_changes(
        config,
        {key: value(config) if callable(value) else value for key, value in row.changes.items()},
    )
    if config.data.filter == "truth" and not config.mismatch.rate:
        config.data.filter = "none"  # it would drop nothing, which is an error
    if pretrained and config.model.text_encoder != WORDS:
        config.model.pretrained = str(pretrained.absolute())
    if row.drops:
        config = with_changes(config, equal_updates(config, 1 - config.mismatch.rate))
    noise_name = mismatch.label(config.mismatch)
    parts = name.replace(" ", "_"), config.model.head, noise_name, f"seed{seed}"
    return Cell("-".join(parts), name, config)


def equal_updates(config: ConfigDict, kept: float) -> dict[str, int]:
    """Return epochs with which a share of the pairs is trained on as often as all are."""
    warmup = round(config.train.warmup_epochs / kept)
    total = int((config.train.warmup_epochs + config.train.epochs) / kept)
    return {
        "train.warmup_epochs": warmup,
        "train.epochs": total - warmup,
        "optim.decay_epochs": round(config.optim.decay_epochs / kept),
    }
