"""Command line: `l2rm [MODE] [SOURCE] [--config=NAME] [--config.FIELD=VALUE ...] [flags]`.

`MODES` has an entry for each mode, whose functions fill the rest of the file. Modes import their
libraries when they run, so that `l2rm --help` answers at once.
"""

# First of all: the imports below take seconds, and one that Ctrl-C interrupts may abort.
if __name__ == "__main__":
    from l2rm_jax.interrupt import handle_ctrl_c

    handle_ctrl_c()

import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from l2rm_jax.cli import Command, Flag, Mode
from l2rm_jax.cli.error_lines import error_lines, interrupted_line, missing_package_error
from l2rm_jax.cli.help import answer, show
from l2rm_jax.cli.mistakes import refuse_beside, require_flags
from l2rm_jax.cli.mode import CONFIG, DATA, FIELD, PRETRAINED, SHARED_PLACE, SOURCE
from l2rm_jax.cli.source import IMPORT_FLAGS
from l2rm_jax.cli.streams import escape_characters, exit_if_reader_left, show_log
from l2rm_jax.devices.hosts import (
    OUT_OF_MEMORY,
    exit_now,
    exit_with_error,
    is_primary,
    is_single_host,
    join_hosts,
    leave_hosts,
    out_of_memory_error,
)
from l2rm_jax.devices.programs import prepare_process
from l2rm_jax.errors import ConfigError, L2RMError, StoppedError
from l2rm_jax.importing.command import FILTER, IMPORT, WEIGHTS
from l2rm_jax.interrupt import STATUS, begin_work, end_work, handle_ctrl_c, leave_ctrl_c
from l2rm_jax.retriever.modes import CANDIDATES, EMBED, PROPOSER, SEARCH, ZERO_SHOT

_log = logging.getLogger(__name__)
_WORKDIR = Flag(
    "workdir",
    "DIR",
    "directory of the run: checkpoints, log, results; continues the run in it",
    default="runs/ and a name from the config",
)
_RUNS = Flag("workdir", "DIR", "a run to test; repeat the flag to average several", many=True)
_CHECKPOINTS = Flag(
    "checkpoint",
    "FILE",
    "a published PyTorch checkpoint to test instead; repeat the flag to average several",
    many=True,
)
_ENDED = "error: code of a plug-in ended the program, expected it to return"
_SOURCE = SOURCE._replace(meaning=f"a table, an archive or a folder to import; {SOURCE.meaning}")
_OF_IMPORT = tuple(filter(None, map(IMPORT.flag, IMPORT_FLAGS)))
_HOSTS = (
    Flag(
        "coordinator",
        "ADDRESS",
        "with several hosts: address and port of host 0 (10.0.0.1:8476), the same on all; auto "
        "reads it, --hosts and --host from the cluster (Cloud TPU, Slurm, Open MPI, ...)",
    ),
    Flag("hosts", "N", "with --coordinator: number of hosts", kind=int),
    Flag("host", "N", "with --coordinator: number of this host, from 0", kind=int),
)


def _check(command: Command) -> None:
    from l2rm_jax.check import check
    from l2rm_jax.run.config_file import read_config

    command = _with_imported(command)
    if command.is_built_in and command["workdir"]:
        read_config(command["workdir"])  # there is none: that is the error
    if command.is_built_in:
        _log.info("no config, no data: checking scenes, the built-in data set")
    print(check(command.config))


def _train(command: Command) -> None:
    from l2rm_jax.train import train

    command = _with_imported(command)
    if command.is_built_in:
        _log.info("no config, no data: training on scenes, the built-in data set")
    train(command.config, command["workdir"] or default_workdir(command.config))


def _with_imported(command: Command) -> Command:
    """Return a command on imported data, if its source is a table, an archive or a folder."""
    if not command["source"]:
        return command
    from l2rm_jax.importing.from_source import import_beside

    return import_beside(command, MODES)


def default_workdir(config: ConfigDict) -> str:
    """Directory in `runs/` named after data set, method, head, mismatch and seed."""
    from l2rm_jax.data import mismatch

    noise = mismatch.label(config.mismatch)
    names = (config.data.name, config.method, config.model.head, noise, f"seed{config.seed}")
    return str(Path("runs") / "-".join(names))


def _evaluate(command: Command) -> None:
    from l2rm_jax.evaluate import evaluate_checkpoints, evaluate_runs, evaluate_vectors
    from l2rm_jax.evaluation.recall import recall_table

    workdirs, checkpoints = command["workdir"], command["checkpoint"]
    proposer, candidates = command["proposer"], command["candidates"]
    if command["zero_shot"]:
        refuse_beside(command, "zero_shot", "workdir", "checkpoint", "proposer", "candidates")
        rows = evaluate_vectors(command.config)
    elif checkpoints:
        refuse_beside(command, "checkpoint", "workdir", "proposer", "candidates")
        rows = evaluate_checkpoints(_checkpoint_config(command), checkpoints)
    else:
        require_flags(command, "workdir")
        if command.config_name is not None:
            raise ConfigError("--config cannot be combined with a run, which has its own config")
        if proposer or candidates:
            require_flags(command, "proposer", "candidates")
        rows = evaluate_runs(workdirs, command.changes, proposer, candidates)
    if is_primary():
        print(recall_table(rows, command.config.data.test_split))


def _audit(command: Command) -> None:
    from l2rm_jax.audit import command as audit
    from l2rm_jax.audit.last_lines import describe_audit, describe_share
    from l2rm_jax.judging import open_judge

    workdir, out, place = command["workdir"], command["out"], command.place
    require_flags(command, "out")
    if name := command["source"] or "":
        from l2rm_jax.audit.from_source import import_source

        command = import_source(command, MODES)
    if workdir and command.config_name is not None:
        raise ConfigError("--config cannot be combined with a run, which has its own config")
    judge = open_judge(command["judge"]) if command["judge"] else None
    if command.is_built_in and not workdir:
        _log.info("no config, no data: auditing scenes, the built-in data set")
    flags = [*_flags_of_pairs(command)]
    if workdir:
        found = audit.audit_run(workdir, out, command.changes, place, flags, judge)
    else:
        found = audit.audit_directory(command.config, out, place, name, flags, judge)
    print(describe_audit(found, out, flags) if found else describe_share(place.share, out))
    if found and (status := audit.exit_status(found)):
        sys.stdout.flush()
        sys.exit(status)


def _flags_of_pairs(command: Command) -> Iterator[str]:
    """Yield the flags that name the pairs and their config, as they were given."""
    for name, value in command.given:
        if name not in ("out", *(flag.name for flag in SHARED_PLACE)):
            yield f"--{name}" if value is None else f"--{name}={value}"


def _new(command: Command) -> None:
    from l2rm_jax.methods.new import write_method

    words = command["source"]
    if len(words) != 2 or words[0] != "method":
        raise ConfigError(
            f"l2rm new: found {' '.join(words) or 'nothing'}, expected method NAME",
            hint=command.mode.example,
        )
    method, test = write_method(words[1], Path())
    print(f"{method}: the method, to change\n{test}: its test, for pytest")
    print(f"train: l2rm --config.plugins={words[1]} --config.method={words[1]}")


def _checkpoint_config(command: Command) -> ConfigDict:
    """Config for a published checkpoint, whose file decides most fields of the model."""
    for key in command.changes:
        if key.startswith("model.") and key not in ("model.chunk", "model.dropout"):
            raise ConfigError(
                f"config.{key}: cannot be set; with --checkpoint it is read from the file"
            )
    return command.config


# In the order of the work. A new mode is an entry here, and the function that the entry names.
MODES = (
    *(IMPORT, WEIGHTS),
    Mode(
        "check",
        "describe and check the data",
        "l2rm check --data=D",
        (
            *(_SOURCE, CONFIG, FIELD, DATA, PRETRAINED),
            Flag("workdir", "DIR", "a run whose config and data are checked"),
            *_OF_IMPORT,
        ),
        _check,
    ),
    Mode(
        "audit",
        "find mismatched pairs",
        "l2rm audit pairs.csv",
        (
            _SOURCE,
            *(CONFIG, FIELD, PRETRAINED),
            DATA._replace(value="DIR", meaning="directory of the data"),
            Flag("workdir", "DIR", "a run whose data are audited; its own judgement is used"),
            Flag(
                "out",
                "DIR",
                "the new directory: report, table, page, scores for training",
                default="NAME-audit for the SOURCE NAME.csv",
            ),
            Flag(
                "judge",
                "DIR",
                "an audit of trusted pairs whose kept judge judges these; no model is fitted",
            ),
            Flag("by", "COLUMN", "report the rate of each value of a column of the imported table"),
            *_OF_IMPORT,
            *SHARED_PLACE,
        ),
        _audit,
        "{out}.partial keeps the finished parts",
    ),
    FILTER,
    Mode(
        "train",
        "train or continue a run",
        "l2rm --config=f30k:rcl --data=D",
        (_SOURCE, CONFIG, FIELD, DATA, PRETRAINED, _WORKDIR, *_OF_IMPORT, *_HOSTS),
        _train,
        "training has not begun; a judgement of the pairs is kept once it is finished",
    ),
    Mode(
        "evaluate",
        "test runs and their average",
        "l2rm evaluate --workdir=W --data=D:test",
        (
            *(_RUNS, DATA, PROPOSER, CANDIDATES, _CHECKPOINTS, ZERO_SHOT),
            Flag("config", "NAME", "with --checkpoint or --zero_shot: a config"),
            FIELD._replace(meaning="a field of evaluation; with --checkpoint, any field"),
            *_HOSTS,
        ),
        _evaluate,
    ),
    SEARCH,
    EMBED,
    Mode(
        "new",
        "write a method to change",
        "l2rm new method my_method",
        (
            Flag(
                "source",
                "WORD",
                "method, then the name of yours; both follow the mode without --source=",
                many=True,
            ),
        ),
        _new,
    ),
)


def main(words: Sequence[str]) -> None:
    """Parse the command line and run its mode; known errors end the process with two lines.

    Args:
      words: the command line without the program's name.
    """
    from l2rm_jax.cli.parse import parse

    command = None
    try:
        command = parse(words, MODES)
        begin_work(interrupted_line(command))
        _join_hosts(command)
        command.mode.run(command)
        sys.stdout.flush()  # an error of the output is still reported below
    except StoppedError as error:
        if not is_single_host():
            leave_hosts()
        exit_now(str(error), 128 + error.signal)  # as a shell says that the signal ended it
    except (L2RMError, OSError) as error:  # OSError: disk full, no permission, ...
        if isinstance(error, OSError):
            exit_if_reader_left(error)
        exit_with_error(error_lines(error, command, MODES))
    except SystemExit as error:
        is_silent = not error.code or (isinstance(error.code, int) and error.code % 256 == 0)
        sys.exit(_ENDED if is_silent else error.code)
    except ModuleNotFoundError as error:
        exit_with_error(error_lines(missing_package_error(error)))
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        exit_with_error(error_lines(out_of_memory_error(error)))
    except KeyboardInterrupt:
        exit_now(end_work(), STATUS)


def _join_hosts(command: Command) -> None:
    """Join the other hosts, if the flags name a coordinator."""
    hosts, host = command["hosts"], command["host"]
    if command["coordinator"] is None:
        if hosts is not None or host is not None:
            raise ConfigError("--hosts and --host require --coordinator")
        return
    join_hosts(command["coordinator"], hosts, host)
    if not is_primary():
        logging.getLogger("l2rm_jax").setLevel(logging.WARNING)


def run_command() -> None:
    """Run the command line of this process: help at once, a mode after setting up the process."""
    handle_ctrl_c()
    escape_characters()
    # As with `python -m`: plug-ins may lie where the command is run.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    words = sys.argv[1:]
    try:
        text = answer(words, MODES)
    except (L2RMError, OSError) as error:
        sys.exit(error_lines(error))
    if text is not None:
        leave_ctrl_c()
        try:
            show(text)
            sys.stdout.flush()
        except OSError as error:
            exit_if_reader_left(error)
            raise
        return
    show_log()
    prepare_process()
    try:
        main(words)
    except SystemExit as error:
        # After an error, threads of a library may wait in vain: those of orbax, for minutes.
        if isinstance(error.code, str) and threading.active_count() > 1:
            exit_now(error.code, 1)
        raise


if __name__ == "__main__":
    run_command()
