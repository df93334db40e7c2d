"""The errors of a wrong mode, flag or field, each with the nearest right one to try."""

import difflib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from l2rm_jax.cli.mode import Command, Mode
from l2rm_jax.cli.words import Words, command_text
from l2rm_jax.config import default, flat, unknown_field_error
from l2rm_jax.errors import ConfigError

_OF_ALL_MODES = ("help", "version", "mode")


def find_mode(given: Words, modes: Sequence[Mode]) -> Mode:
    """The mode that a command line names; training if it names none.

    Raises:
      ConfigError: there is no such mode.
    """
    for mode in modes:
        if mode.name == (given.mode or "train"):
            return mode
    names = [mode.name for mode in modes]
    nearest = difflib.get_close_matches(given.mode or "", names, n=1)
    if given.mode and not nearest and Path(given.mode).exists():
        nearest, given = ["audit"], given._replace(flags=(("source", given.mode), *given.flags))
    raise ConfigError(
        f"{given.mode}: no such mode, expected {', '.join(names[:-1])} or {names[-1]}",
        hint=command_text(nearest[0], given.flags) if nearest else "l2rm --help",
    )


def unknown_flag_error(name: str, given: Words, mode: Mode, modes: Sequence[Mode]) -> ConfigError:
    """Error for a flag that the mode does not have.

    The hint is a mode that has the flag, the field that was meant, or the flag with the most
    similar spelling.
    """
    value = dict(given.flags)[name]
    owners = [other for other in modes if other.takes(name)]
    if owners:
        names = [other.name for other in owners]
        fit = [o.name for o in owners if all(o.takes(flag) for flag, _ in given.flags)]
        return ConfigError(
            f"--{name}: not a flag of l2rm {mode.name}, expected l2rm {' or '.join(names)}",
            hint=command_text(fit[0], given.flags) if fit else f"l2rm {mode.name} --help",
        )
    message = f"--{name}: no such flag, expected a flag that l2rm {mode.name} --help lists"
    return ConfigError(message, hint=_nearest(name, value, mode))


def unknown_field_flag_error(key: str, value: str | None, known: Iterable[str]) -> ConfigError:
    """Error for a field that the config does not have."""
    error = unknown_field_error(key, known)
    error.hint = _paste(error.hint, value)
    return error


def value_error(flag: str, value: str | None, expected: str) -> ConfigError:
    """Error for a flag with a value of the wrong kind, or with none."""
    if not value:
        return ConfigError(f"{flag}: found no value, expected {expected}")
    return ConfigError(f"{flag}: found {value!r}, expected {expected}")


def require_flags(command: Command, *names: str) -> None:
    """Raise an error for the first flag that is missing of those without which a mode cannot run.

    Raises:
      ConfigError: the flag is missing.
    """
    for name in names:
        if not command[name]:
            mode = command.mode
            raise ConfigError(f"l2rm {mode.name} requires --{name}", hint=mode.example)


def refuse_beside(command: Command, flag: str, *others: str) -> None:
    """Raise an error if a flag is beside another one that it excludes.

    Raises:
      ConfigError: both are given.
    """
    for name in others:
        if command[flag] and command[name]:
            raise ConfigError(f"--{flag} cannot be combined with --{name}")


def _nearest(name: str, value: str | None, mode: Mode) -> str:
    """Suggest a field or a similar flag for an unknown flag."""
    if mode.flag("config.FIELD"):
        fields = [key for key in flat(default()) if f".{key}".endswith(f".{name}")]
        if fields:
            return _paste(f"config.{min(fields, key=len)}", value)
    names = [flag.name for flag in mode.flags if flag.name != "config.FIELD"]
    nearest = difflib.get_close_matches(name, [*names, *_OF_ALL_MODES], n=1)
    return _paste(nearest[0], value) if nearest else f"l2rm {mode.name} --help"


def _paste(name: str, value: str | None) -> str:
    return shlex.quote(f"--{name}" if value is None else f"--{name}={value}")
