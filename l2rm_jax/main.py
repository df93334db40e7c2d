"""Command line: `python -m l2rm_jax.main [--config=configs/f30k.py] [--config.key=value ...]`."""

import logging
import re
import signal
import sys
from pathlib import Path

import jax
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

from l2rm_jax import config as defaults
from l2rm_jax.check import check
from l2rm_jax.config import flat
from l2rm_jax.data import mismatch
from l2rm_jax.devices.hosts import (
    OUT_OF_MEMORY,
    describe_error,
    exit_now,
    exit_with_error,
    is_primary,
    is_single_host,
    join_hosts,
)
from l2rm_jax.devices.programs import prepare_process
from l2rm_jax.errors import ConfigError, L2RMError, StoppedError
from l2rm_jax.evaluate import Rows, evaluate_checkpoints, evaluate_runs
from l2rm_jax.evaluation.recall import recall_table
from l2rm_jax.published.import_run import import_checkpoint
from l2rm_jax.run.config_file import (
    CONFIG_FILE,
    load_config,
    read_config,
    unknown_key_error,
    with_changes,
)
from l2rm_jax.train import train

_WORKDIR = flags.DEFINE_multi_string(
    "workdir",
    [],
    "Directory of the run: checkpoints, log, results. A run that was stopped there continues. "
    "With --mode=evaluate, repeat the flag to average several runs.",
)
_CHECKPOINT = flags.DEFINE_multi_string(
    "checkpoint",
    [],
    "A published PyTorch checkpoint to evaluate (repeat the flag to average several), or to import "
    "as the start of a run in --workdir.",
)
_PROPOSER = flags.DEFINE_string(
    "proposer",
    None,
    "With --mode=evaluate: directory of a run whose head is one product (vse); the runs of "
    "--workdir then score only what it proposes.",
)
_TOP_K = flags.DEFINE_multi_integer(
    "top_k",
    [],
    "Candidates that --proposer proposes for each image and each caption (repeat the flag for "
    "several tables); 0 scores all pairs, to compare with.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "With several hosts: address and port of host 0 (10.0.0.1:8476), the same on all; or auto, to "
    "find this and the two flags below in the environment (Cloud TPU, Slurm, Open MPI, ...).",
)
_HOSTS = flags.DEFINE_integer("hosts", None, "With --coordinator: how many hosts there are.")
_HOST = flags.DEFINE_integer("host", None, "With --coordinator: which one this is, 0, 1, ...")
_CONFIG_HELP = "Config of the run, FILE.py or FILE.py:VARIANT; without it, the built-in data set."
_MODE = flags.DEFINE_enum("mode", "train", ["train", "evaluate", "check", "import"], "What to do.")


def main(arguments: list[str]) -> None:
    try:
        if len(arguments) > 1:
            raise ConfigError(f"{arguments[1]}: no flag; a field is set by --config.KEY=VALUE")
        if "" in _WORKDIR.value:
            raise ConfigError("--workdir: empty, expected a directory")
        if _CHECKPOINT.value and _MODE.value not in ("evaluate", "import"):
            raise ConfigError("--checkpoint: goes with --mode=evaluate or --mode=import")
        if (_PROPOSER.value or _TOP_K.value) and (_MODE.value != "evaluate" or _CHECKPOINT.value):
            raise ConfigError("--proposer, --top_k: go with --mode=evaluate of runs")
        _join_hosts()
        _MODES[_MODE.value]()
    except StoppedError as error:
        if not is_single_host():
            jax.distributed.shutdown()  # where hosts wait for each other
        # The status is what the shell says of a process that the signal ended.
        exit_now(str(error), 128 + signal.SIGTERM)
    except (L2RMError, OSError) as error:  # a disk that is full, a directory that is not ours
        exit_with_error(f"error: {error}")
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        exit_with_error(f"error: {describe_error(error)}")
    except KeyboardInterrupt:
        exit_now("stopped; a training run continues with the same command", 1)


def _join_hosts() -> None:
    """Makes this process one of several, if the flags say so."""
    hosts, host = _HOSTS.value, _HOST.value
    if _COORDINATOR.value is None:
        if hosts is not None or host is not None:
            raise ConfigError("--hosts, --host: go with --coordinator")
        return
    if _MODE.value not in ("train", "evaluate"):
        raise ConfigError("--coordinator: goes with --mode=train or --mode=evaluate")
    join_hosts(_COORDINATOR.value, hosts, host)
    if not is_primary():
        logging.getLogger("l2rm_jax").setLevel(logging.WARNING)


def _train() -> None:
    config = _run_config()
    train(config, _WORKDIR.value[0] if _WORKDIR.value else default_workdir(config))


def _run_config() -> ConfigDict:
    """The given config; without --config, that of the run in the work directory, if there is one.

    Single keys may be given in either case; one that differs from the run's is refused later.
    """
    if len(_WORKDIR.value) > 1:
        raise ConfigError(f"--workdir: found {len(_WORKDIR.value)}, expected one directory")
    given = flags.FLAGS["config"]
    if given.present or not _WORKDIR.value or not Path(_WORKDIR.value[0], CONFIG_FILE).exists():
        return given.value
    return with_changes(read_config(_WORKDIR.value[0]), config_flags.get_override_values(given))


def _evaluate() -> None:
    if _CHECKPOINT.value:
        if _WORKDIR.value:
            raise ConfigError("--checkpoint, --workdir: evaluate either checkpoints or runs")
        _show(evaluate_checkpoints(_checkpoint_config(), _CHECKPOINT.value))
        return
    if not _WORKDIR.value:
        raise ConfigError("--workdir: evaluation needs the directory of at least one run")
    if flags.FLAGS["config"].present:
        raise ConfigError("--config: a run is evaluated with its own; leave the flag out")
    changes = config_flags.get_override_values(flags.FLAGS["config"])
    _show(evaluate_runs(_WORKDIR.value, changes, _PROPOSER.value, _TOP_K.value))


def _show(rows: Rows) -> None:
    if is_primary():
        print(recall_table(rows))


def _import() -> None:
    for name, values in (("checkpoint", _CHECKPOINT.value), ("workdir", _WORKDIR.value)):
        if len(values) != 1:
            raise ConfigError(f"--{name}: found {len(values)}, --mode=import takes one")
    [checkpoint], [workdir] = _CHECKPOINT.value, _WORKDIR.value
    row = import_checkpoint(_checkpoint_config(), checkpoint, workdir)
    print(recall_table({f"{checkpoint}, validation": row}))
    print(f"imported; it goes on with: python -m l2rm_jax.main --workdir={workdir}")


def _checkpoint_config() -> ConfigDict:
    for key in config_flags.get_override_values(flags.FLAGS["config"]):
        if key.startswith("model.") and key not in ("model.chunk", "model.dropout"):
            raise ConfigError(f"{key}: with --checkpoint, it is read from the file")
    return flags.FLAGS.config


def _check() -> None:
    print(check(_run_config()))


_MODES = {"train": _train, "evaluate": _evaluate, "check": _check, "import": _import}


def default_workdir(config: ConfigDict) -> str:
    """`runs/` and what tells one run from another at a glance."""
    noise = mismatch.label(config.mismatch)
    names = (config.data.name, config.method, config.model.head, noise, f"seed{config.seed}")
    return str(Path("runs") / "-".join(names))


def parse_flags(argv: list[str]) -> list[str]:
    """Parse the command line; exit with one line where it is wrong.

    The config file and the plug-ins come first, because they decide which fields exist.

    Returns:
      The arguments that are no flags, the program's name first.
    """
    try:
        name, rest = _take_config(argv)
        plugins = _named_plugins(rest)
        if name is None:
            built_in = {**flat(defaults.get_config()), "plugins": plugins}
            config = with_changes(defaults.default(plugins), built_in)
        else:
            config = load_config(name, plugins)
        _check_field_names(rest, config)
        config_flags.DEFINE_config_dict("config", config, _CONFIG_HELP, sys_argv=rest)
        flags.FLAGS["config"].present = int(name is not None)
        return flags.FLAGS(rest)
    except (flags.Error, L2RMError, OSError) as error:
        sys.exit(f"error: {error}")


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    """The value of the last --config, and the arguments without that flag."""
    name, rest, arguments = None, [], iter(argv)
    for argument in arguments:
        flag, given, value = argument.partition("=")
        if flag in ("--config", "-config"):
            name = value if given else next(arguments, "")
        else:
            rest.append(argument)
    return name, rest


def _named_plugins(argv: list[str]) -> tuple[str, ...]:
    """The plug-ins that the command line names itself, or by the directory of a run."""
    names: list[str] = []
    for argument in argv:
        flag, _, value = argument.lstrip("-").partition("=")
        if flag == "config.plugins":
            names += re.findall(r"[\w.]+", value)
        elif flag == "workdir" and Path(value, CONFIG_FILE).is_file():
            names += read_config(value).plugins
    return tuple(dict.fromkeys(names))


def _check_field_names(argv: list[str], config: ConfigDict) -> None:
    known = flat(config)
    for argument in argv[1:]:
        match = re.match(r"--?config\.([^=]+)", argument)
        if match and match[1] not in known:
            raise unknown_key_error(argument, match[1], known)


def run_command() -> None:
    """Set up this process and run the command line."""
    prepare_process()
    # Libraries speak up when something is wrong; the package says what it does.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("l2rm_jax").setLevel(logging.INFO)
    app.run(main, flags_parser=parse_flags)


if __name__ == "__main__":
    run_command()
