"""The command line `l2rm`: its modes, their flags, the help, and the display of errors.

- `mode`: the types of a mode, a flag and a parsed command;
- `words`: splits the words of a command line into the mode and the flags;
- `parse`: turns them into a `Command`, with the config that `config_flags` chooses;
- `mistakes`: the errors of a wrong mode, flag or field, with the nearest right one;
- `help`: the screens of `--help` and `--version`;
- `streams`: the log, characters and readers of standard output and error;
- `error_lines`: an error as the lines that a person sees.

The other modes are the table in `main.py`. May import `run` and the packages that `run` may
import (see `l2rm_jax/README.md`). `help` and its imports start no JAX, so that it answers at
once.
"""

from l2rm_jax.cli.mode import Command, Flag, Mode

__all__ = ["Command", "Flag", "Mode"]
