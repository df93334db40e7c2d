"""Import the source of an audit, a table, an archive or a folder, into the audit's directory."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from l2rm_jax.audit.command import DATA
from l2rm_jax.cli.mode import SOURCE, Command, Mode
from l2rm_jax.cli.words import Given, command_text
from l2rm_jax.errors import ConfigError
from l2rm_jax.importing.from_source import (
    data_command,
    describe_rows,
    source_request,
    without_import,
)
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.sources import find_files
from l2rm_jax.jobs import SINGLE, Job
from l2rm_jax.jobs.files import check_new
from l2rm_jax.judging import JUDGEMENT_FILE


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
    others = without_import(command)
    place.check()
    find_files(Path(source))  # no encoder is needed to see that there is none
    if place.share != SINGLE:
        raise ConfigError(
            "--share requires imported data",
            hint=f"l2rm import {shlex.quote(source)} --out=data/mine",
        )
    job = Job(out, "audit")
    data = job.partial / DATA
    if (out / DATA).is_dir():
        raise ConfigError(
            f"{out}: already exists, expected the name of a new directory; its {DATA} are imported",
            hint=_command_of_data(others, out),
        )
    check_new(out, "directory")
    with job.locked():
        record = _import(source_request(command, data))
    describe_rows(source, record, out / DATA)
    audit = data_command(command, data, modes)
    return dataclasses.replace(audit, given=(("data", str(out / DATA)), *others))


def _command_of_data(others: Sequence[Given], out: Path) -> str:
    """Return a command that audits the data in a complete directory again, without an import."""
    free = next(path for n in range(2, 10**6) if not (path := Path(f"{out}-{n}")).exists())
    flags = [("data", str(out / DATA)), *(flag for flag in others if flag[0] != "out")]
    names = [name for name, _ in flags]
    has_judged = (out / JUDGEMENT_FILE).is_file() and "config.judgement.path" not in names
    if "config.audit.review" in names and has_judged:  # nothing is judged again
        flags.append(("config.judgement.path", str(out)))
    return command_text("audit", [*flags, ("out", str(free))])


def _import(request: Request) -> dict:
    """Import the data, or check that the data that are there are of the same import."""
    if request.out.exists():  # what only lacks its name is checked, and not encoded again
        request.out.rename(request.job.partial)
    return import_data(request)
