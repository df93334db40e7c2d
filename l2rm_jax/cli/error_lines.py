"""Format an error or Ctrl-C as the lines that a person sees: the problem, then the remedy."""

from collections.abc import Sequence

from l2rm_jax.cli.mode import Command, Mode
from l2rm_jax.cli.words import command_text
from l2rm_jax.errors import ConfigError, L2RMError, is_full
from l2rm_jax.jobs.full_disk import written_file

# Modules of the extras in pyproject.toml, and the extra that installs each.
EXTRAS = {
    "charset_normalizer": "import",
    "datasets": "import",
    "icu4py": "languages",
    "matplotlib": "plots",
    "pyarrow": "parquet",
    "ray": "ray",
    "safetensors": "pretrained",
    "sentencepiece": "encoders",
    "tensorboardX": "tensorboard",
    "timm": "encoders",
    "tokenizers": "pretrained",
    "torch": "torch",
    "transformers": "encoders",
}


def missing_package_error(error: ModuleNotFoundError) -> ConfigError:
    """Return the error for a missing package of an extra, with the command that installs it.

    Raises:
      ModuleNotFoundError: the module is of no extra.
    """
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        raise error
    return ConfigError(
        f"the package {name} is not installed", hint=f"pip install 'l2rm_jax[{EXTRAS[name]}]'"
    )


def error_lines(
    error: L2RMError | OSError, command: Command | None = None, modes: Sequence[Mode] = ()
) -> str:
    """The line `error: ...` and, if a next step is known, the line `  try: ...`.

    Args:
      error: the error; one of the system names its file.
      command: the command that failed; None if it could not be parsed.
      modes: all modes. Of several problems, training shows the first; the hint is then the command
        that lists them all.
    """
    if not isinstance(error, L2RMError):
        name = error.filename2 or error.filename  # two: of a copy
        if name is None and is_full(error):
            name = written_file(error)
        if name is None or error.strerror is None:
            return f"error: {error}"
        return f"error: {name}: {error.strerror}"
    hint = error.hint
    if len(error.args) > 1 and command is not None and command.mode.name == "train":
        [check] = [mode for mode in modes if mode.name == "check"]
        hint = command_text("check", [flag for flag in command.given if check.takes(flag[0])])
    return f"error: {error}" + (f"\n  try: {hint}" if hint else "")


def interrupted_line(command: Command) -> str:
    """Say which work Ctrl-C leaves, and give the command that continues or restarts it."""
    again = command_text(command.mode.name, command.given)
    if not command.mode.kept:
        return f"stopped by Ctrl-C; nothing was written. Again: {again}"
    return f"stopped by Ctrl-C; {command.mode.kept.format(out=command['out'])}. Continue: {again}"
