"""Turn a command line into a `Command`: the mode, the values of its flags, and the config."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags as absl_flags

from l2rm_jax.cli.mistakes import (
    find_mode,
    unknown_flag_error,
    value_error,
)
from l2rm_jax.cli.mode import FIELD, Command, Mode, modes_with_source
from l2rm_jax.cli.source import place_source
from l2rm_jax.cli.words import split_words
from l2rm_jax.errors import ConfigError, expand_home

PREFIX = "config."
KINDS: dict[type, tuple[absl_flags.ArgumentParser, str]] = {
    bool: (absl_flags.BooleanParser(), "true or false"),
    int: (absl_flags.IntegerParser(), "a whole number"),
    float: (absl_flags.FloatParser(), "a number"),
    str: (absl_flags.ArgumentParser(), "text"),
}


def parse(words: Sequence[str], modes: Sequence[Mode]) -> Command:
    """Parse a command line; reads the config that it names, and imports the config's plug-ins.

    Args:
      words: the command line without the program's name.
      modes: all modes; without a mode, the command line means "train".

    Raises:
      ConfigError: a mode, a flag or a field does not exist or has a wrong value, or the config
        cannot be read.
    """
    given = split_words(words, modes_with_source(modes))
    mode = find_mode(given, modes)
    texts: dict[str, list[str | None]] = {}
    for name, _ in given.flags:
        if not mode.takes(name):
            raise unknown_flag_error(name, given, mode, modes)
    flags = place_source(given.flags, mode)
    for name, value in flags:
        texts.setdefault(name, []).append(value)
    values = _flag_values(texts, mode)
    config_name = values.pop("config", None)
    fields = {
        name.removeprefix(PREFIX): text for name, text in texts.items() if name.startswith(PREFIX)
    }
    if mode.flag(FIELD.name) is None:
        return Command(mode, values, None, {}, None, flags)
    from l2rm_jax.cli.config_flags import choose_config  # takes a second to import

    config, changes, is_built_in = choose_config(config_name, values, fields)
    return Command(mode, values, config, changes, config_name, flags, is_built_in)


def _flag_values(texts: Mapping[str, list[str | None]], mode: Mode) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for flag in mode.flags:
        parser, kind = KINDS[flag.kind]
        expected = flag.value if flag.kind is str else kind
        given = texts.get(flag.name, [])
        if flag.kind is not bool:
            given = [text or None for text in given]  # an empty value is none
        read = expand_home if flag.is_path else parser.parse
        found = [parse_value(f"--{flag.name}", text, flag.kind, read, expected) for text in given]
        if len(found) > 1 and not flag.many:
            raise ConfigError(f"--{flag.name}: found {len(found)}, expected one")
        if found:
            values[flag.name] = found if flag.many else found[0]
    return values


def parse_value(
    name: str, text: str | None, kind: type, read: Callable[[str], Any], expected: str
) -> Any:
    """Read the value of a flag or a field with `read`; a switch needs no value to be on."""
    if kind is bool and text is None:
        return True
    if text is None:
        raise value_error(name, text, expected)
    try:
        return read(text)
    except ValueError:
        raise value_error(name, text, expected) from None
