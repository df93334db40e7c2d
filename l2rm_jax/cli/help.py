"""The screens of `--help` and `--version`, at most 80 columns wide."""

import os
import pydoc
import textwrap
from collections.abc import Sequence

from l2rm_jax.cli.mistakes import find_mode
from l2rm_jax.cli.mode import Mode, modes_with_source
from l2rm_jax.cli.words import split_words
from l2rm_jax.config import FIELDS, SECTIONS, flat
from l2rm_jax.version import __version__

WIDTH = 80
_MODE_WIDTH, _PURPOSE_WIDTH = 10, 29
_FLAG_WIDTH = 23


def answer(words: Sequence[str], modes: Sequence[Mode]) -> str | None:
    """The text that `--help`, `-h` or `--version` asks for; None if none of them is there.

    Args:
      words: the command line without the program's name.
      modes: all modes.

    Raises:
      ConfigError: the words name a mode or a config that does not exist.
    """
    asks_help = not {"-h", "--help"}.isdisjoint(words)
    if not asks_help:
        return f"l2rm_jax {__version__}" if "--version" in words else None
    words = [word for word in words if word not in ("-h", "--help")]
    given = split_words(words, modes_with_source(modes))
    if given.mode is not None:
        return mode_screen(find_mode(given, modes))
    return f"{first_screen(modes)}\n\n{fields_screen(dict(given.flags).get('config'))}"


def show(text: str) -> None:
    """Print a text to standard output; through a pager, if it is a terminal."""
    os.environ.setdefault("LESS", "-FRX")  # quit at the end of a short text, and leave it there
    pydoc.pager(f"{text}\n")


def first_screen(modes: Sequence[Mode]) -> str:
    """Show the purpose of the program, and each mode with its purpose and an example."""
    lines = [
        "Image-text retrieval learned from noisy pairs.",
        "usage: l2rm [MODE] [SOURCE] [--config=NAME] [--config.FIELD=VALUE ...] [flags]",
    ]
    for mode in modes:
        line = f"  {mode.name:<{_MODE_WIDTH}}{mode.purpose:<{_PURPOSE_WIDTH}}"
        if len(line) + len(mode.example) <= WIDTH:
            lines.append(line + mode.example)
        else:
            lines += [line.rstrip(), f"    {mode.example}"]
    lines += [
        "Without a mode, l2rm trains; without config or data, on the built-in data set.",
        "l2rm MODE --help: the flags of a mode. l2rm --version: the version.",
    ]
    return "\n".join(lines)


def mode_screen(mode: Mode) -> str:
    """The flags of a mode, and an example."""
    lines = [f"l2rm {mode.name}: {mode.purpose}", ""]
    for flag in mode.flags:
        value = f"={flag.value}" if flag.value else ""
        meaning = f"{flag.meaning} [{flag.default}]" if flag.default else flag.meaning
        lines += _columns(f"--{flag.name}{value}", meaning, _FLAG_WIDTH)
    return "\n".join([*lines, "", "example:", f"  {mode.example}"])


def fields_screen(config_name: str | None = None) -> str:
    """All fields of the config by section, with meanings and defaults.

    Args:
      config_name: config whose values are shown; None shows the defaults of the library.

    Raises:
      ConfigError: the config cannot be read.
    """
    values = {name: field.default for name, field in FIELDS.items()}
    if config_name is not None:
        # This import takes seconds, for which the other screens should not wait.
        from l2rm_jax.run.config_file import load_config

        values = flat(load_config(config_name))
    lines = textwrap.wrap(
        f"Fields of the config, each with its default{f' in {config_name}' if config_name else ''}"
        " in brackets. l2rm --config=NAME --help shows the defaults of another config.",
        WIDTH,
    )
    for section, comment in SECTIONS.items():
        prefix = f"{section}." if section else ""
        names = [name for name in values if name.rpartition(".")[0] == section]
        lines += ["", f"--config.{prefix}FIELD=VALUE"]
        lines += textwrap.wrap(comment, WIDTH, initial_indent="  ", subsequent_indent="  ")
        width = max((len(name.rpartition(".")[2]) for name in names), default=0) + 2
        for name in names:
            known = FIELDS.get(name)  # None for a setting of a plug-in
            default = repr(values[name])
            if isinstance(values[name], str):
                default = values[name] or '""'
            if name == "train.epochs":
                default = f"{values['train.warmup_epochs']} warm-up + {default}"
            meaning = f"{known.meaning if known else ''} [{default}]".lstrip()
            lines += _columns(name.rpartition(".")[2], meaning, width)
    return "\n".join(lines)


def _columns(name: str, meaning: str, width: int) -> list[str]:
    """A name, and its meaning in a column beside it."""
    indent = " " * (2 + width)
    wrapped = textwrap.wrap(meaning, WIDTH - len(indent), break_on_hyphens=False) or [""]
    if len(name) >= width:
        wrapped.insert(0, "")
    first, *rest = wrapped
    return [f"  {name:<{width}}{first}".rstrip(), *(indent + line for line in rest)]
