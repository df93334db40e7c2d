"""Train a grid of configurations on one data set; a CSV row per run.

python -m experiments.sweep --config=configs/scenes.py --out=runs/scenes \
    --vary method=l2rm,triplet --vary mismatch.rate=0,0.6 --vary seed=0,1,2
python -m experiments.sweep --config=configs/scenes.py --out=runs/rho \
    --vary l2rm.rho=0.1,0.3,0.5 --set train.epochs=6

Keys are those of `l2rm_jax/config.py`; `seed` sets `mismatch.seed` too, unless that is set itself.
Every run has its own directory under --out. A sweep that was stopped continues: finished runs are
left alone, an interrupted one goes on from its last checkpoint. `results.csv` has a row for every
finished run under --out, with a column for every key in which they differ.
"""

import argparse
import ast
import csv
import gc
import io
import itertools
import json
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from l2rm_jax.config import flat
from l2rm_jax.data import mismatch
from l2rm_jax.data.files import replace_file
from l2rm_jax.devices.programs import prepare_process
from l2rm_jax.errors import ConfigError, L2RMError
from l2rm_jax.run.config_file import check_workdir, with_changes
from l2rm_jax.train import train

RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
COLUMNS = (
    "data", "method", "head", "protocol", "rate_asked", "true_rate", "kept_share", "filter",
    "filter_kept", "seed", "evaluation", *RECALLS,
    "best_epoch", *(f"dev_{name}" for name in RECALLS),
    "split_accuracy", "split_precision", "split_auroc", "seconds", "device", "jax",
)  # fmt: skip
SEEDS = ("seed", "mismatch.seed")  # runs that differ in these alone may be averaged
# Config keys that a column, and a directory's name, hold in another form.
NAMED = ("data.name", "method", "model.head", "mismatch.protocol", "mismatch.rate", "seed")


def main() -> None:
    arguments = parse_arguments(__doc__)
    config = load_config(arguments.config)
    run_grid(grid(config, arguments.vary, arguments.set), arguments.out)


def parse_arguments(description: str) -> argparse.Namespace:
    """Those of a sweep: `config`, `out`, `vary`, `set`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:VARIANT")
    parser.add_argument("--out", required=True, type=Path, help="directory of the sweep")
    add_settings(parser, "vary", "set")
    return parser.parse_args()


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """`--vary KEY=VALUE,VALUE` and `--set KEY=VALUE`, each any number of times."""
    forms = {"vary": "KEY=VALUE,VALUE", "set": "KEY=VALUE"}
    for name in names:
        parser.add_argument(
            f"--{name}", action=_Setting, default={}, metavar=forms[name], help="a config key"
        )


class _Setting(argparse.Action):
    """Collects `KEY=VALUE` as {key: value}, `KEY=VALUE,VALUE` as {key: [values]}."""

    def __call__(self, parser, namespace, text, option_string=None):
        key, equals, right = text.partition("=")
        if not equals:
            parser.error(f"{option_string} {text}: expected {self.metavar}")
        several = self.dest == "vary"
        value = [_value(word) for word in right.split(",")] if several else _value(right)
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), key: value})


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def load_config(name: str) -> ConfigDict:
    """The config of `FILE.py` or `FILE.py:VARIANT`.

    Raises:
      ConfigError: there is no such file, or it does not load.
    """
    file, _, variant = name.partition(":")
    if not Path(file).is_file():
        raise ConfigError(f"{file}: no such config file")
    try:
        return runpy.run_path(file)["get_config"](*[variant][: bool(variant)])
    except L2RMError:
        raise
    except Exception as error:  # a config file is a program
        raise ConfigError(f"{name}: {type(error).__name__}: {error}") from error


def grid(
    base: ConfigDict, vary: Mapping[str, Sequence], settings: Mapping[str, Any]
) -> Iterator[tuple[str, ConfigDict]]:
    """Name and config of each run: every combination of the varied values, the last key fastest.

    Raises:
      ConfigError: a key does not exist, or a value is not of its kind.
    """
    for values in itertools.product(*vary.values()):
        changes = {**settings, **dict(zip(vary, values, strict=True))}
        if "seed" in changes:
            changes.setdefault("mismatch.seed", changes["seed"])
        config = with_changes(base, changes)
        yield run_name(config, vary), config


def run_name(config: ConfigDict, vary: Iterable[str]) -> str:
    """`l2rm-saf-image0.4-seed0`, and what else is varied."""
    values = flat(config)
    more = (f"{key}{values[key]}".replace("/", "_") for key in vary if key not in NAMED)
    noise = mismatch.label(config.mismatch)
    return "-".join([config.method, config.model.head, noise, f"seed{config.seed}", *more])


def run_grid(runs: Iterable[tuple[str, ConfigDict]], out: Path) -> list[Path]:
    """Trains what is not finished, run after run, and keeps `results.csv` up to date.

    Args:
      runs: name of each run's directory under `out`, and its config.
      out: directory of the grid; more than one process may work in it, on different runs.

    Returns:
      The directories of the runs.

    Raises:
      L2RMError: of a run; or a directory holds a run with another config, before any is trained.
    """
    configs = {out / name: config for name, config in runs}
    for workdir, config in configs.items():
        check_workdir(workdir, config)
    for workdir, config in configs.items():
        if not (workdir / "results.json").exists():
            train(config, workdir)
            # Programs of finished runs add up until the system refuses memory for another.
            jax.clear_caches()
            gc.collect()
        write_csv(out)
    return list(configs)


def write_csv(out: Path) -> None:
    """`results.csv`: a row for every finished run under `out`."""
    workdirs = sorted(path.parent for path in out.glob("*/results.json"))
    found = [json.loads((workdir / "results.json").read_text()) for workdir in workdirs]
    configs = [flat(result["config"]) for result in found]
    keys = dict.fromkeys(key for config in configs for key in config if key not in NAMED)
    differ = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*COLUMNS, *differ], restval="", extrasaction="ignore")
    writer.writeheader()
    for workdir, result, config in zip(workdirs, found, configs, strict=True):
        writer.writerow({**config, **row_of(result, epochs(workdir))})
    replace_file(out / "results.csv", text.getvalue().encode())


def row_of(result: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of a finished run, from its results and the records of its epochs."""
    best = max(records, key=lambda record: record["rsum"])
    validation = {f"dev_{name}": best[name] for name in RECALLS}
    evaluation, test = next(iter(result["test"].items()))
    return {
        **records[-1], **result["versions"], **result, **test, **validation,
        "best_epoch": best["epoch"], "evaluation": evaluation,
    }  # fmt: skip


def epochs(workdir: Path) -> list[dict[str, Any]]:
    """The records of the epochs so far; a line that is still being written is not one."""
    text = (workdir / "metrics.jsonl").read_text()
    records = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    return [record for record in records if record["kind"] == "epoch"]


def differ_in_seed_alone(configs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether runs with these configs may be averaged."""
    found = [flat(config) for config in configs]
    seeds = [tuple(config.pop(key) for key in SEEDS) for config in found]
    return len(set(seeds)) == len(seeds) and all(config == found[0] for config in found)


def start(main_function: Callable[[], None], prepare: bool = True) -> None:
    """`main` of a script; what the library refuses is one line, not a traceback. Freed memory
    is kept, and compiled programs, for the runs of a sweep and the next ones, unless the script
    runs nothing and so should not `prepare`."""
    if prepare:
        prepare_process()
    try:
        main_function()
    except L2RMError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    start(main)
