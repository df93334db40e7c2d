"""Command line: `python -m l2rm_jax.main [--config=configs/f30k.py] [--config.key=value ...]`."""

import difflib
import logging
import re
import sys
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

from l2rm_jax import config as defaults
from l2rm_jax.checkpoint import CONFIG_FILE, read_config
from l2rm_jax.data import mismatch
from l2rm_jax.data.check import check
from l2rm_jax.errors import ConfigError, L2RMError
from l2rm_jax.evaluate import evaluate_checkpoints, evaluate_runs
from l2rm_jax.import_run import import_checkpoint
from l2rm_jax.recall import table
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
_MODE = flags.DEFINE_enum("mode", "train", ["train", "evaluate", "check", "import"], "What to do.")


def main(_: list[str]) -> None:
    try:
        if _CHECKPOINT.value and _MODE.value not in ("evaluate", "import"):
            raise ConfigError("--checkpoint: goes with --mode=evaluate or --mode=import")
        _MODES[_MODE.value]()
    except L2RMError as error:
        sys.exit(f"error: {error}")


def _train() -> None:
    if len(_WORKDIR.value) > 1:
        raise ConfigError("--workdir: training takes one directory")
    config = _train_config()
    workdir = _WORKDIR.value[0] if _WORKDIR.value else default_workdir(config)
    print(f"training in {workdir}")
    train(config, workdir)


def _train_config() -> ConfigDict:
    """The given config; without --config, that of the run in the work directory, if there is one.

    Single keys may be given in either case; one that differs from the run's is refused later.
    """
    given = flags.FLAGS["config"]
    if given.present or not _WORKDIR.value or not Path(_WORKDIR.value[0], CONFIG_FILE).exists():
        return given.value
    config = defaults.default()
    with config.unlocked():
        config.update(read_config(_WORKDIR.value[0]))
    config.update_from_flattened_dict(config_flags.get_override_values(given))
    return config


def _evaluate() -> None:
    if _CHECKPOINT.value:
        if _WORKDIR.value:
            raise ConfigError("--checkpoint, --workdir: evaluate either checkpoints or runs")
        print(table(evaluate_checkpoints(_checkpoint_config(), _CHECKPOINT.value)))
        return
    if not _WORKDIR.value:
        raise ConfigError("--workdir: evaluation needs the directory of at least one run")
    changes = config_flags.get_override_values(flags.FLAGS["config"])
    print(table(evaluate_runs(_WORKDIR.value, changes)))


def _import() -> None:
    for name, values in (("checkpoint", _CHECKPOINT.value), ("workdir", _WORKDIR.value)):
        if len(values) != 1:
            raise ConfigError(f"--{name}: found {len(values)}, --mode=import takes one")
    [checkpoint], [workdir] = _CHECKPOINT.value, _WORKDIR.value
    row = import_checkpoint(_checkpoint_config(), checkpoint, workdir)
    print(table({f"{checkpoint}, validation": row}))
    print(f"imported; it goes on with: python -m l2rm_jax.main --workdir={workdir}")


def _checkpoint_config() -> ConfigDict:
    for key in config_flags.get_override_values(flags.FLAGS["config"]):
        if key.startswith("model.") and key not in ("model.chunk", "model.dropout"):
            raise ConfigError(f"{key}: with --checkpoint, it is read from the file")
    return flags.FLAGS.config


def _check() -> None:
    print(check(flags.FLAGS.config))


_MODES = {"train": _train, "evaluate": _evaluate, "check": _check, "import": _import}


def default_workdir(config: ConfigDict) -> str:
    """`runs/` and what tells one run from another at a glance."""
    noise = mismatch.label(config.mismatch)
    names = (config.data.name, config.method, config.model.head, noise, f"seed{config.seed}")
    return str(Path("runs") / "-".join(names))


def parse_flags(argv: list[str]) -> list[str]:
    """absl's parser, with our own words for a config that does not exist."""
    known = _keys(defaults.default())
    for argument in argv[1:]:
        match = re.match(r"--?config\.([^=]+)", argument)
        if match and match[1] not in known:
            sys.exit(_no_such_key(argument, match[1], known))
    help_text = "Config of the run, FILE.py or FILE.py:VARIANT; without it, the built-in data set."
    config_flags.DEFINE_config_file("config", defaults.__file__, help_text)
    try:
        rest = flags.FLAGS(argv)
        _ = flags.FLAGS.config.seed  # a file that failed to load says so only here
        return rest
    except (flags.Error, OSError) as error:  # a traceback may be part of its text
        sys.exit(f"error: {str(error).strip().splitlines()[-1].strip()}")
    except AttributeError as error:  # of the locked config, while a file is run
        match = re.search(r'Key "(\w+)" does not exist', str(error))
        if not match:
            raise
        sys.exit(_no_such_key(f"{match[1]} in the config file", match[1], known))


def _no_such_key(where: str, key: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    return f"error: {where}: no such config key; the nearest is {nearest}"


def _keys(config: ConfigDict, prefix: str = "") -> list[str]:
    keys = []
    for name, value in config.items():
        nested = isinstance(value, ConfigDict)
        keys += _keys(value, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return keys


if __name__ == "__main__":
    # Libraries speak up when something is wrong; the package says what it does.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("l2rm_jax").setLevel(logging.INFO)
    app.run(main, flags_parser=parse_flags)
