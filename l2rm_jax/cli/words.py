"""Split the words of a command line into the mode and the flags."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from l2rm_jax.errors import ConfigError

Given = tuple[str, str | None]  # name and value of a flag; None where no value was given


class Words(NamedTuple):
    """A command line, split.

    Attributes:
      mode: the mode that it names; None if it names none.
      flags: name (without dashes) and value of each flag, in order.
    """

    mode: str | None
    flags: tuple[Given, ...]


def split_words(words: Sequence[str], with_source: Collection[str] = ()) -> Words:
    """Split a command line, without the program's name.

    The mode is the first word, unless it is a path with a separator (`data/mine`), which is a
    source, or the value of `--mode`. A flag is `--name=value`, `--name value`
    or `--name`; one dash is as good as two.

    Args:
      words: the words.
      with_source: names of the modes that take one more word, the value of their flag `--source`.

    Raises:
      ConfigError: a word is neither, `--mode` has no value, or the mode is named twice and
        differently.
    """
    rest = list(words)
    mode = rest.pop(0) if rest and not rest[0].startswith("-") and "=" not in rest[0] else None
    flags: list[Given] = []
    if mode is not None and os.sep in mode and Path(mode).exists():  # a source alone
        mode, flags = None, [("source", mode)]
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or not word.strip("-"):
            if mode in with_source and ("=" not in word or Path(word).exists()):
                flags.append(("source", word))
                continue
            raise _stray_word_error(word, mode)
        name, equals, value = word.lstrip("-").partition("=")
        if equals:
            flags.append((name, value))
        else:
            following = rest[0] if rest else "-"
            is_value = not following.startswith("-") or re.match(r"-[\d.]", following)  # -1 is one
            flags.append((name, rest.pop(0) if is_value else None))
    for name, value in flags:
        if name == "mode" and not value:
            raise ConfigError("--mode: found no value, expected a mode", hint="l2rm --help")
        if name == "mode" and mode not in (None, value):
            raise ConfigError(
                f"--mode={value}: found after the mode {mode}, expected one of the two",
                hint=f"l2rm {value}",
            )
        mode = value if name == "mode" else mode
    return Words(mode, tuple(flag for flag in flags if flag[0] != "mode"))


def command_text(mode: str, flags: Iterable[Given]) -> str:
    """A command that can be pasted into a shell."""
    words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in flags]
    return shlex.join(["l2rm", mode, *words])


def _stray_word_error(word: str, mode: str | None) -> ConfigError:
    if "=" in word:
        hint = f"--{word}" if word.startswith("config.") else f"--config.{word}"
    else:
        name = mode or word.strip("-")
        hint = f"l2rm {name} --help" if name else "l2rm --help"
    return ConfigError(f"{word}: not a flag, expected --NAME=VALUE after the mode", hint=hint)
