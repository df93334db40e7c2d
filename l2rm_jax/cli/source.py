"""The positional SOURCE of a command: a run, a directory of data, or something to import."""

from collections.abc import Sequence
from pathlib import Path

from l2rm_jax.cli.mode import SOURCE, Mode
from l2rm_jax.cli.words import Given
from l2rm_jax.data.record import DATASET_FILE
from l2rm_jax.data.shards import have_vectors
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import ConfigError
from l2rm_jax.run.config_file import CONFIG_FILE

IMPORT_FLAGS = (  # of the import, for modes that import their source
    *("pictures", "image_column", "caption_column", "encoder"),
    *("image_vectors", "caption_vectors", "max_rejected"),
)
_CONTENTS = "features", "pixels", "texts", "named_texts", "vectors"
_SPLITS = "train", "dev", "test"


def place_source(flags: Sequence[Given], mode: Mode) -> tuple[Given, ...]:
    """Return the flags with `--workdir` or `--data` instead of a source that needs no import.

    A mode that writes a directory names it after the source, unless `--out` does.

    Args:
      flags: the flags of a command, with its positional word as `source`.
      mode: the mode; one without `--data`, such as the import, takes every source as it is.

    Raises:
      ConfigError: another flag names the data too, or a flag of the import is useless.
    """
    given = dict(flags)
    source = given.get(SOURCE.name)
    if mode.flag("data") is None:
        return tuple(flags)
    flag = source and _flag_of(source)
    if flag != SOURCE.name and (useless := [name for name in IMPORT_FLAGS if name in given]):
        raise ConfigError(
            f"--{useless[0]} requires a source to import, such as a table of pictures and captions",
            hint=mode.example,
        )
    if not source:
        return tuple(flags)
    is_output = mode.name == "train" and flag != "workdir"  # a new run on the source
    for other in ("data", "workdir"):
        if other in given and not (other == "workdir" and is_output):
            raise ConfigError(f"the source {source} cannot be combined with --{other}")
    placed = tuple((flag if name == SOURCE.name else name, value) for name, value in flags)
    if mode.flag("out") is not None and not given.get("out"):
        placed += (("out", f"{source_name(source)}-{mode.name}"),)
    return placed


def _flag_of(source: str) -> str:
    """Return the flag that a source is the value of: `workdir`, `data`, or `source` to import."""
    path = Path(source)
    if (path / CONFIG_FILE).is_file() and (path / "checkpoints").is_dir():
        return "workdir"
    files = (split_file(path, split, content) for split in _SPLITS for content in _CONTENTS)
    if (path / DATASET_FILE).is_file() or any(file.is_file() for file in files):
        return "data"
    return "data" if path.is_dir() and have_vectors(path) else SOURCE.name


def source_name(source: str) -> str:
    """Return the name of a source without its directory and ending."""
    path = Path(source)
    if not path.exists() and any(sign in path.name for sign in "*?["):  # a pattern of files
        path = path.parent
    path = path.resolve()
    return (path.name if path.is_dir() else path.stem) or "source"
