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
    "Directory of the run, with its checkpoints, log and results. A stopped run continues. With "
    "--mode=evaluate, repeat the flag to average several runs.",
)
_CHECKPOINT = flags.DEFINE_multi_string(
    "checkpoint",
    [],
    "File of a published PyTorch checkpoint. It is evaluated (repeat the flag to average several), "
    "or with --mode=import becomes the start of a run in --workdir.",
)
_PROPOSER = flags.DEFINE_string(
    "proposer",
    None,
    "With --mode=evaluate: directory of a run whose similarity is one product (vse). It proposes "
    "candidates, and the runs of --workdir score only these.",
)
_TOP_K = flags.DEFINE_multi_integer(
    "top_k",
    [],
    "Number of candidates that --proposer proposes for each image and each caption (repeat the "
    "flag for several tables). 0 scores all pairs, for comparison.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "With several hosts: address and port of host 0 (10.0.0.1:8476), the same on all hosts. auto "
    "reads it, --hosts and --host from the environment (Cloud TPU, Slurm, Open MPI, ...).",
)
_HOSTS = flags.DEFINE_integer("hosts", None, "With --coordinator: number of hosts.")
_HOST = flags.DEFINE_integer("host", None, "With --coordinator: number of this host, from 0.")
_CONFIG_HELP = (
    "Config of the run, FILE.py or FILE.py:VARIANT. Without it, a run uses the built-in data set."
)
_MODE = flags.DEFINE_enum("mode", "train", ["train", "evaluate", "check", "import"], "What to do.")


def main(arguments: list[str]) -> None:
    """Run the mode that the flags ask for; known errors end the process with one line.

    Args:
      arguments: arguments that are not flags, the program's name first.
    """
    try:
        if len(arguments) > 1:
            raise ConfigError(f"{arguments[1]}: not a flag; set a field with --config.KEY=VALUE")
        if "" in _WORKDIR.value:
            raise ConfigError("--workdir: empty, expected a directory")
        if _CHECKPOINT.value and _MODE.value not in ("evaluate", "import"):
            raise ConfigError("--checkpoint: needs --mode=evaluate or --mode=import")
        if (_PROPOSER.value or _TOP_K.value) and (_MODE.value != "evaluate" or _CHECKPOINT.value):
            raise ConfigError("--proposer, --top_k: need --mode=evaluate with runs")
        _join_hosts()
        _MODES[_MODE.value]()
    except StoppedError as error:
        if not is_single_host():
            jax.distributed.shutdown()  # waits for all hosts
        # The status that a shell gives a process that the signal ended.
        exit_now(str(error), 128 + error.signal)
    except (L2RMError, OSError) as error:  # OSError: disk full, no permission, ...
        exit_with_error(f"error: {error}")
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        exit_with_error(f"error: {describe_error(error)}")
    except KeyboardInterrupt:
        exit_now("stopped by Ctrl-C", 128 + signal.SIGINT)


def _join_hosts() -> None:
    """Join the other hosts, if the flags name a coordinator."""
    hosts, host = _HOSTS.value, _HOST.value
    if _COORDINATOR.value is None:
        if hosts is not None or host is not None:
            raise ConfigError("--hosts, --host: need --coordinator")
        return
    if _MODE.value not in ("train", "evaluate"):
        raise ConfigError("--coordinator: needs --mode=train or --mode=evaluate")
    join_hosts(_COORDINATOR.value, hosts, host)
    if not is_primary():
        logging.getLogger("l2rm_jax").setLevel(logging.WARNING)


def _train() -> None:
    config = _run_config()
    train(config, _WORKDIR.value[0] if _WORKDIR.value else default_workdir(config))


def _run_config() -> ConfigDict:
    """Config of the run: from --config, else from the run in --workdir, else the built-in data set.

    Flags for single fields apply in each case. `train` checks later whether a resumed run may
    change them.
    """
    if len(_WORKDIR.value) > 1:
        raise ConfigError(f"--workdir: found {len(_WORKDIR.value)}, expected one directory")
    flag = flags.FLAGS["config"]
    if flag.present or not _WORKDIR.value or not Path(_WORKDIR.value[0], CONFIG_FILE).exists():
        return flag.value
    return with_changes(read_config(_WORKDIR.value[0]), config_flags.get_override_values(flag))


def _evaluate() -> None:
    if _CHECKPOINT.value:
        if _WORKDIR.value:
            raise ConfigError("--checkpoint, --workdir: found both, expected only one of them")
        _show(evaluate_checkpoints(_checkpoint_config(), _CHECKPOINT.value))
        return
    if not _WORKDIR.value:
        raise ConfigError("--workdir: --mode=evaluate needs the directory of at least one run")
    if flags.FLAGS["config"].present:
        raise ConfigError("--config: a run is evaluated with its own config; leave the flag out")
    changes = config_flags.get_override_values(flags.FLAGS["config"])
    _show(evaluate_runs(_WORKDIR.value, changes, _PROPOSER.value, _TOP_K.value))


def _show(rows: Rows) -> None:
    if is_primary():
        print(recall_table(rows))


def _import() -> None:
    for name, values in (("checkpoint", _CHECKPOINT.value), ("workdir", _WORKDIR.value)):
        if len(values) != 1:
            raise ConfigError(f"--{name}: found {len(values)}, expected one with --mode=import")
    [checkpoint], [workdir] = _CHECKPOINT.value, _WORKDIR.value
    row = import_checkpoint(_checkpoint_config(), checkpoint, workdir)
    print(recall_table({f"{checkpoint}, validation": row}))
    print(f"imported; to continue: python -m l2rm_jax.main --workdir={workdir}")


def _checkpoint_config() -> ConfigDict:
    """Config for a published checkpoint, whose file decides most fields of the model."""
    for key in config_flags.get_override_values(flags.FLAGS["config"]):
        if key.startswith("model.") and key not in ("model.chunk", "model.dropout"):
            raise ConfigError(f"{key}: cannot be set; with --checkpoint it is read from the file")
    return flags.FLAGS.config


def _check() -> None:
    print(check(_run_config()))


_MODES = {"train": _train, "evaluate": _evaluate, "check": _check, "import": _import}


def default_workdir(config: ConfigDict) -> str:
    """Directory in `runs/` named after data set, method, head, mismatch and seed."""
    noise = mismatch.label(config.mismatch)
    names = (config.data.name, config.method, config.model.head, noise, f"seed{config.seed}")
    return str(Path("runs") / "-".join(names))


def parse_flags(argv: list[str]) -> list[str]:
    """Parse the command line; exit with one line if it is wrong.

    The config file and the plug-ins are loaded first, because they decide which fields exist.

    Args:
      argv: the command line, the program's name first.

    Returns:
      The arguments that are not flags, the program's name first.
    """
    try:
        name, rest = _split_off_config(argv)
        plugins = _find_plugins(rest)
        if name is None:
            built_in = {**flat(defaults.get_config()), "plugins": plugins}
            config = with_changes(defaults.default(plugins), built_in)
        else:
            config = load_config(name, plugins)
        _check_field_names(rest, config)
        config_flags.DEFINE_config_dict("config", config, _CONFIG_HELP, sys_argv=rest)
        flags.FLAGS["config"].present = int(name is not None)
        return flags.FLAGS(rest)
    except (flags.Error, L2RMError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def _split_off_config(argv: list[str]) -> tuple[str | None, list[str]]:
    """Value of the last --config (None without the flag), and the arguments without the flag."""
    name, rest, arguments = None, [], iter(argv)
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag in ("--config", "-config"):
            name = value if equals else next(arguments, "")
        else:
            rest.append(argument)
    return name, rest


def _find_plugins(argv: list[str]) -> tuple[str, ...]:
    """Plug-ins from --config.plugins, and those of the runs in --workdir."""
    names: list[str] = []
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        flag, equals, value = argument.lstrip("-").partition("=")
        value = value if equals else following
        if flag == "config.plugins":
            names += re.findall(r"[\w.]+", value)
        elif flag == "workdir" and Path(value, CONFIG_FILE).is_file():
            names += read_config(value).plugins
    return tuple(dict.fromkeys(names))


def _check_field_names(argv: list[str], config: ConfigDict) -> None:
    """Raise an error that names the nearest field, if --config.KEY has an unknown key."""
    known = flat(config)
    for argument in argv[1:]:
        match = re.match(r"--?config\.([^=]+)", argument)
        if match and match[1] not in known:
            raise unknown_key_error(argument, match[1], known)


def run_command() -> None:
    """Set up this process and run the command line."""
    prepare_process()
    # Libraries log warnings only; this package also logs what it does.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("l2rm_jax").setLevel(logging.INFO)
    app.run(main, flags_parser=parse_flags)


if __name__ == "__main__":
    run_command()
