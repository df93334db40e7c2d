"""Parts that scripts share: flags, errors of the library, and rows of numbers in CSV files."""

import argparse
import ast
import csv
import io
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2rm_jax.cli.error_lines import error_lines, missing_package_error
from l2rm_jax.errors import L2RMError
from l2rm_jax.jobs.files import replace_file

if TYPE_CHECKING:
    from ml_collections import ConfigDict


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the description, a script's docstring, as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )


def values_of(kind: Callable) -> Callable[[str], Sequence]:
    """Return a function that reads values between commas."""
    return lambda text: [kind(value) for value in text.split(",")]


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the flags `--vary KEY=VALUE,VALUE` and `--set KEY=VALUE`, which may be repeated.

    With `set`, `--plugins=MODULE,MODULE` is short for `--set plugins=MODULE,MODULE`.
    """
    forms = {"vary": "KEY=VALUE,VALUE", "set": "KEY=VALUE"}
    for name in names:
        parser.add_argument(
            f"--{name}", action=_Setting, default={}, metavar=forms[name], help="a config field"
        )
    if "set" in names:
        parser.add_argument(
            "--plugins", action=_Plugins, metavar="MODULES", help="plug-ins, with commas"
        )


class _Setting(argparse.Action):
    """Collect `KEY=VALUE` as {key: value} and `KEY=VALUE,VALUE` as {key: [values]}."""

    def __call__(self, parser, namespace, text, option_string=None):
        key, equals, right = text.partition("=")
        if not equals:
            parser.error(f"{option_string} {text}: expected {self.metavar}")
        several = self.dest == "vary"
        value = [_value(word) for word in right.split(",")] if several else _value(right)
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), key: value})


class _Plugins(argparse.Action):
    """Collect `--plugins=MODULE,MODULE` as the setting `plugins`."""

    def __call__(self, parser, namespace, text, option_string=None):
        namespace.set = {**namespace.set, "plugins": text}


def plugin_names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that the setting `plugins` names: a tuple, or a text with commas."""
    value = settings.get("plugins", ())
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value)


def load_base(name: str, settings: Mapping[str, Any]) -> tuple["ConfigDict", dict[str, Any]]:
    """Return a config by its name, with the plug-ins of the settings, and the other settings.

    Raises:
      ConfigError: there is no such config, or a plug-in cannot be imported.
    """
    from l2rm_jax.run.config_file import load_config  # it imports JAX

    others = {key: value for key, value in settings.items() if key != "plugins"}
    return load_config(name, plugin_names(settings)), others


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def start(main_function: Callable[[], None], prepare: bool = True) -> None:
    """Run the `main` of a script and print an error of the library as the command line does.

    Args:
      main_function: the `main` to run.
      prepare: whether to keep freed memory and compiled programs, for the next runs of this process
        and of later ones. A script that runs no program on a device sets it to False.
    """
    if prepare:
        from l2rm_jax.devices.programs import prepare_process  # it imports JAX

        prepare_process()
    try:
        main_function()
    except L2RMError as error:
        sys.exit(error_lines(error))
    except ModuleNotFoundError as error:
        sys.exit(error_lines(missing_package_error(error)))


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> None:
    """Write rows as a CSV file, whole or not at all.

    Args:
      path: the file.
      rows: values by column; a column that a row lacks is empty, values of others are left out.
      columns: names of the columns; the first row's by default.
    """
    text = io.StringIO(newline="")
    names = list(rows[0] if columns is None else columns)
    writer = csv.DictWriter(text, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are there, as texts."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add_rows(
    path: Path, names: Sequence[str], todo: Mapping[tuple, Callable[[], list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """Add rows to a CSV file, which is written after each measurement, and return all its rows.

    Args:
      path: the file.
      names: columns that name a measurement.
      todo: by the values in these columns, a function that measures and returns the rows. Those
        that the file holds are not called.
    """
    rows = read_rows(path)
    done = {tuple(row[name] for name in names) for row in rows}
    for key, measure in todo.items():
        if tuple(map(str, key)) not in done:
            rows += measure()
            write_rows(path, rows)
            print(*rows[-1].values(), flush=True)
    return rows


def rows_by(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """Collect the rows with equal values in some columns, by these values as text."""
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(str(row[name]) for name in columns), []).append(row)
    return found


def means(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], digits: int = 3
) -> dict[str, str]:
    """Return the mean of each column."""
    return {
        name: f"{sum(float(row[name]) for row in rows) / len(rows):.{digits}f}" for name in columns
    }


def processor() -> str:
    """Return the name of the processor, for which Python says just `x86_64` on Linux."""
    file = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.*)$", file.read_text(), re.M) if file.exists() else None
    return name[1] if name else platform.processor() or platform.machine()
