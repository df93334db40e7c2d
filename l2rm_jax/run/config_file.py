"""The config of a run as its directory keeps it, `config.json`, and changes of it by dotted key."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config import default, flat
from l2rm_jax.errors import ConfigError
from l2rm_jax.run.results import to_jsonable, write_json

CONFIG_FILE = "config.json"
# What a run writes after that; the directories of the checkpoints are there before.
_LATER = ("checkpoints/*/*", "metrics.jsonl", "results.json")


def unknown_key_error(where: str, key: str) -> ConfigError:
    """The error for a key that no config has, found at `where`: it names the nearest one."""
    nearest = difflib.get_close_matches(key, flat(default()), n=1, cutoff=0.0)[0]
    return ConfigError(f"{where}: no such config key; the nearest is {nearest}")


def with_changes(base: ConfigDict, changes: Mapping[str, Any], where: str = "") -> ConfigDict:
    """A copy with other values, by dotted key; messages start with `where`.

    Raises:
      ConfigError: a key does not exist, or a value is not of its kind.
    """
    config = base.copy_and_resolve_references()  # ConfigDict(base) would share the parts
    known = flat(config)
    for key, value in changes.items():
        if key not in known:
            raise unknown_key_error(f"{where}{key}", key)
        try:
            config.update_from_flattened_dict({key: value})
            fits = value is not None  # which a ConfigDict takes for any type
        except (TypeError, OverflowError):
            fits = False
        if not fits:
            kind = type(known[key]).__name__
            raise ConfigError(f"{where}{key}: found {value!r}, expected a value of type {kind}")
    return config


def write_config(workdir: str | Path, config: ConfigDict) -> None:
    """Binds `workdir`, created where missing, to `config`."""
    write_json(Path(workdir) / CONFIG_FILE, config.to_dict())


def read_config(workdir: str | Path) -> ConfigDict:
    """The config that the run in `workdir` was started with.

    A field that the file lacks is newer than the run. It takes its default, which is what runs did
    before there was the field.

    Raises:
      ConfigError: there is no such file, or it holds no config of this version or an older one.
    """
    path = Path(workdir) / CONFIG_FILE
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: no run was started in {workdir} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(saved, dict):
        raise ConfigError(f"{path}: found a {type(saved).__name__}, expected an object")
    return with_changes(default(), flat(saved), where=f"{path}: ")


def check_workdir(workdir: str | Path, config: ConfigDict) -> None:
    """Refuses a `workdir` that holds a run with another configuration or none, or is no directory.

    This keeps a run from overwriting the checkpoints of another.

    Args:
      workdir: directory of the run; it need not exist.
      config: of the run that is to go on there.

    Raises:
      ConfigError: the configurations differ, and the message lists the keys as `key: saved -> now`;
        or there are a run's checkpoints or records, and no configuration.
    """
    if Path(workdir).exists() and not Path(workdir).is_dir():
        raise ConfigError(f"{workdir}: a file, expected the directory of a run")
    if not (Path(workdir) / CONFIG_FILE).exists():
        _refuse_remains(Path(workdir))
        return
    saved, now = (to_jsonable(flat(each)) for each in (read_config(workdir), config))
    differences = [
        f"  {key}: {json.dumps(saved[key])} -> {json.dumps(value)}"
        for key, value in sorted(now.items())
        if saved[key] != value
    ]
    if differences:
        raise ConfigError(
            f"{workdir} holds a run with another configuration (saved -> now):\n"
            + "\n".join(differences)
            + "\nChoose another workdir, or the saved configuration."
        )


def _refuse_remains(workdir: Path) -> None:
    """Refuses a directory without a config that holds what a run writes later."""
    kept = [path for pattern in _LATER for path in workdir.glob(pattern)]
    if kept:
        raise ConfigError(
            f"{workdir}: found {kept[0].relative_to(workdir)} but no {CONFIG_FILE}, so nothing "
            f"says which run's it is; expected both or neither: put its {CONFIG_FILE} back, or "
            "choose another workdir"
        )
