"""The config and the lock of a work directory, and config changes by dotted key."""

import contextlib
import difflib
import json
import logging
import re
import runpy
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from ml_collections import ConfigDict

from l2rm_jax.config import FIELDS, NEEDED_HEADS, READ_BY, default, flat, unknown_field_error
from l2rm_jax.errors import ConfigError, L2RMError, expand_home, first_line
from l2rm_jax.jobs.regular_files import has_file, refuse_other_kinds
from l2rm_jax.run.results import to_jsonable, write_json

CONFIG_FILE = "config.json"
HASHES_FILE = "data_hashes.json"  # of the data that a run began with
LOCK_FILE = "lock"
_UNFIT = r"[\[\]*?\\\udc80-\udcff]"  # for orbax: patterns, backslashes, bytes that are not UTF-8
# Files that a run writes after its config. The empty checkpoint directories are made before it.
_WRITTEN_LATER = ("checkpoints/*/*", "metrics.jsonl", "results.json")

_log = logging.getLogger(__name__)


def with_changes(base: ConfigDict, changes: Mapping[str, Any], where: str = "") -> ConfigDict:
    """Copy of a config with some values replaced.

    A method that needs a certain head brings it (`NEEDED_HEADS`), unless `changes` names a head.

    Args:
      base: config to copy; it stays as it is.
      changes: new values by dotted key (`train.epochs`).
      where: put before the key in error messages, the name of a file for example.

    Raises:
      ConfigError: a key does not exist, or a value has the wrong type.
    """
    config = base.copy_and_resolve_references()  # ConfigDict(base) would share its sections
    known = flat(config)
    if head := NEEDED_HEADS.get(changes.get("method")):
        changes = {"model.head": head, **changes}
    for key, value in changes.items():
        if key in FIELDS and FIELDS[key].is_path and isinstance(value, str):
            value = expand_home(value)
        if key not in known:
            raise unknown_field_error(key, known, where)
        try:
            config.update_from_flattened_dict({key: value})
            fits = value is not None  # a ConfigDict accepts None for any type
        except (TypeError, OverflowError):
            fits = False
        if not fits:
            kind = type(known[key]).__name__
            raise ConfigError(f"{where}{key}: found {value!r}, expected a value of type {kind}")
    return config


def shipped_configs() -> dict[str, Path]:
    """The config files that come with the package, by name: `f30k`, `scenes`, ...

    They are installed as `l2rm_jax/configs`. In a clone, `configs` lies beside `l2rm_jax`.
    """
    package = Path(__file__).resolve().parents[1]
    installed, cloned = package / "configs", package.parent / "configs"
    files = sorted((installed if installed.is_dir() else cloned).glob("*.py"))
    return {file.stem: file for file in files}


def find_config(name: str) -> tuple[Path, str]:
    """Find the file of a config, by its path or by the name of a shipped config.

    Files in the current directory never change the meaning of a name.

    Args:
      name: `CONFIG` or `CONFIG:VARIANT`. CONFIG is the path of a file if it ends in `.py` or
        contains a slash (`mine.py`, `./mine`), else the name of a shipped config (`f30k`).

    Returns:
      The file, and the variant; "" without one.

    Raises:
      ConfigError: there is no such file or shipped config; its hint has one with a similar name.
      DataError: it is no regular file.
    """
    config, colon, variant = expand_home(name).partition(":")
    path, shipped = Path(config), shipped_configs()
    is_path = path.suffix == ".py" or "/" in config
    file = path if is_path else shipped.get(config)
    if file is not None and has_file(file):
        return file, variant
    message = f"{config}: no such config file"
    if not is_path:
        names = ", ".join(shipped)
        message = f"{config or '--config'}: expected a file (FILE.py) or one of {names}"
    known = {stem: stem for stem in shipped}
    known |= {neighbour.stem: str(neighbour) for neighbour in path.parent.glob("*.py")}
    nearest = difflib.get_close_matches(path.stem, known, n=1)
    hint = f"--config={known[nearest[0]]}{colon}{variant}" if nearest else None
    raise ConfigError(message, hint=hint)


def load_config(name: str, plugins: Iterable[str] = ()) -> ConfigDict:
    """Run a config file, import its plug-ins, and add their settings to the section `own`.

    Args:
      name: `CONFIG` or `CONFIG:VARIANT`, as `find_config` takes it. The function `get_config` of
        the file makes the config.
      plugins: more plug-ins to import.

    Raises:
      ConfigError: there is no such config, its code fails, or a plug-in cannot be imported.
    """
    file, variant = find_config(name)
    try:
        config = runpy.run_path(str(file))["get_config"](*([variant] if variant else []))
        if not isinstance(config, ConfigDict):
            found = type(config).__name__
            raise ConfigError(f"{name}: get_config: found {found}, expected a ConfigDict")
        values, names = flat(config), tuple(dict.fromkeys((*config.plugins, *plugins)))
    except L2RMError:
        raise
    except BaseException as error:  # a config file is a program, and may end itself
        if field := re.search(r'Key "(\w+)" does not exist', str(error)):
            raise unknown_field_error(field[1], flat(default()), f"{name}: ") from error
        raise ConfigError(f"{name}: {first_line(error)}") from error
    return with_changes(default(names), {**values, "plugins": names}, where=f"{name}: ")


def write_config(workdir: str | Path, config: ConfigDict) -> None:
    """Write `config.json` in `workdir`, which is created if missing."""
    write_json(Path(workdir) / CONFIG_FILE, config.to_dict())


def read_config(workdir: str | Path) -> ConfigDict:
    """Read the config that the run in `workdir` was started with.

    A field that is missing in the file gets its default.

    Raises:
      ConfigError: the file is missing, is not valid JSON, or has unknown keys or values of the
        wrong type.
    """
    path = Path(workdir) / CONFIG_FILE
    refuse_other_kinds(path)
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: no run was started in {workdir} ({error.strerror})",
            hint=_nearest_run(workdir),
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(saved, dict):
        raise ConfigError(f"{path}: found a {type(saved).__name__}, expected an object")
    plugins = saved.get("plugins", [])
    if not isinstance(plugins, list) or not all(isinstance(name, str) for name in plugins):
        raise ConfigError(f"{path}: plugins: found {plugins!r}, expected a list of module names")
    return with_changes(default(plugins), flat(saved), where=f"{path}: ")


def _nearest_run(workdir: str | Path) -> str | None:
    """Flag with the run beside `workdir` of the nearest name, else the newest; None without."""
    files = [*Path(workdir).parent.glob(f"*/{CONFIG_FILE}")]
    beside = {file.parent.name: file.parent for file in files}
    nearest = difflib.get_close_matches(Path(workdir).name, beside, n=1)
    if not files:
        return None
    newest = max(files, key=lambda file: file.stat().st_mtime).parent
    return f"--workdir={shlex.quote(str(beside[nearest[0]] if nearest else newest))}"


def check_workdir(workdir: str | Path, config: ConfigDict) -> str | None:
    """Check that a run with this config may start or continue in `workdir`.

    This keeps a run from overwriting the checkpoints of another run. A run may continue with more
    epochs, as those that are trained stay as they are; not if `optim.schedule` is cosine, which
    depends on their number. It may continue with data in another directory, which the caller
    compares with those before (`data_hashes.keep_hashes`), if it has kept their hashes.

    Args:
      workdir: work directory; it need not exist.
      config: config of the run that is to start or continue there.

    Returns:
      If `train.epochs` is higher than in the directory, or the data have another path, a line about
      what that changes; else None.

    Raises:
      ConfigError: `workdir` is a file, or checkpoints cannot be read from its path; or it holds a
        run with another config (the message lists each difference as `key: saved -> now`); or it
        holds checkpoints, records or results, but no `config.json`.
    """
    check_plain_path(workdir)
    if Path(workdir).exists() and not Path(workdir).is_dir():
        raise ConfigError(f"{workdir}: a file, expected the directory of a run")
    if not (Path(workdir) / CONFIG_FILE).exists():
        _check_no_run_files(Path(workdir))
        return None
    check_data_directory(workdir, config)
    saved = to_jsonable(flat(read_config(workdir)))
    now = to_jsonable(flat(config))
    method = saved["method"]
    # Configs set fields of several methods; a method reads only its own sections.
    read = [key for key in sorted(now) if method in READ_BY.get(key.partition(".")[0], (method,))]
    differences = {key: (saved[key], now[key]) for key in read if saved[key] != now[key]}
    notes, others = [], dict(differences)
    before, after = differences.get("train.epochs", (0, 0))
    may_grow = saved["optim.schedule"] == "step"  # a cosine depends on the number of epochs
    if after > before and may_grow:
        del others["train.epochs"]
        notes.append(
            f"train.epochs: {before} -> {after}; the epochs already trained stay as they are: the "
            "learning rate decays by the number of epochs since the warm-up"
        )
    before, after = differences.get("data.path", ("", ""))
    if before and after and (Path(workdir) / HASHES_FILE).exists():
        del others["data.path"]
        notes.append(f"data.path: {before} -> {after}; the data are the same")
    if not others:
        return "\n".join(notes) or None
    lines = [f"  {key}: {json.dumps(a)} -> {json.dumps(b)}" for key, (a, b) in differences.items()]
    raise ConfigError(
        f"{workdir} holds a run with another configuration (saved -> now):\n"
        + "\n".join(lines)
        + "\nexpected the saved configuration"
        + ("; only train.epochs may be raised" if may_grow else ", as optim.schedule is cosine"),
        hint=f"--workdir={Path(workdir)}-2",
    )


def check_plain_path(workdir: str | Path) -> None:
    """Check that checkpoints can be read back from a directory: orbax globs their paths.

    Raises:
      ConfigError: the absolute path holds a character of patterns, so that others could match, or
        one that its array format changes.
    """
    path = str(Path(workdir).absolute())
    if found := sorted(set(re.findall(_UNFIT, path))):
        plain = re.sub(f"{_UNFIT}+", "_", str(workdir)).strip("_")
        raise ConfigError(
            f"{path}: found {' '.join(found)} in the path, with which checkpoints cannot be read "
            "back, expected a path in UTF-8 without [ ] * ? \\",
            hint=f"--workdir={shlex.quote(plain)}" if plain != str(workdir) else None,
        )


def check_data_directory(workdir: str | Path, config: ConfigDict, mode: str = "") -> None:
    """Check that the data of an existing run are where its config says.

    Args:
      workdir: work directory of the run.
      config: its config.
      mode: the mode of the command line, for the hint; "" to train.

    Raises:
      ConfigError: there is no directory.
    """
    if config.data.path and not Path(config.data.path).is_dir():
        raise ConfigError(
            f"{workdir}: its data are in {config.data.path}, where no directory is now",
            hint=" ".join(filter(None, ("l2rm", mode, f"--workdir={workdir}", "--data=DIR"))),
        )


def _check_no_run_files(workdir: Path) -> None:
    """Raise `ConfigError` if a directory without a config holds files of a run."""
    files = [path for pattern in _WRITTEN_LATER for path in workdir.glob(pattern)]
    if files:
        raise ConfigError(
            f"{workdir}: found {files[0].relative_to(workdir)} but no {CONFIG_FILE}, so it is "
            "unknown which run it belongs to. Use another directory",
            hint=f"--workdir={Path(workdir)}-2",
        )


@contextlib.contextmanager
def lock_workdir(workdir: str | Path) -> Iterator[None]:
    """Hold the lock of an existing work directory within a `with` block.

    The system releases the lock when the process ends in any way. On a file system without locks,
    a warning is logged and the run continues unlocked.

    Raises:
      ConfigError: another process holds the lock.
    """
    path = Path(workdir) / LOCK_FILE
    lock = FileLock(path, fallback_to_soft=False)  # a killed process would leave a soft lock behind
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"{workdir}: another process trains in it; expected a directory of its own for "
            f"each run. If that process was on a machine that is gone, remove {path}",
            hint=f"--workdir={Path(workdir)}-2",
        ) from None
    except PermissionError:
        raise  # the directory belongs to another user
    except OSError as error:
        _log.warning("%s: no lock (%s); let no second run use this directory", path, error)
    try:
        yield
    finally:
        lock.release()
