"""Commands in the pages: found in shell code, and parsed as the programs themselves do."""

import argparse
import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.papers import sweep
from l2rm_jax.audit.command import check_detector_of_audit
from l2rm_jax.cli.help import answer
from l2rm_jax.cli.parse import parse
from l2rm_jax.config import default
from l2rm_jax.main import MODES
from l2rm_jax.run.inputs import check_settings

ROOT = Path(__file__).resolve().parents[1]
WORD = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|()<>'"\\])+"""
TOKEN = re.compile(rf"(?<![^\s;&|()<>])#[^\n]*|(?P<end>[\n;&|()<>]+)|(?P<word>{WORD})", re.DOTALL)
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)


def commands(script: str) -> Iterator[list[str]]:
    """The words of each `python -m ...` and `l2rm ...` of a shell script.

    The first word is the module's name, or `l2rm`.

    Variables that the script sets before are expanded, other ones stay as they are. A quoted
    command (`ssh host 'python -m ...'`) counts too.
    """
    variables: dict[str, str] = {}
    words: list[str] = []
    for match in TOKEN.finditer(script.replace("\\\n", "") + "\n"):
        if match["word"]:
            words += _expanded(match["word"], variables)
        elif match["end"]:
            yield from _command(words)
            if words and all(map(ASSIGNMENT.fullmatch, words)):
                variables |= dict(ASSIGNMENT.fullmatch(word).groups() for word in words)
            elif words[:1] == ["for"] and words[2:3] == ["in"]:
                variables[words[1]] = words[3]  # the first turn of the loop
            words = []


def _expanded(word: str, variables: dict[str, str]) -> list[str]:
    """The words that the shell makes of one; within single quotes nothing is expanded."""

    def value(match: re.Match) -> str:
        return variables.get(match[1], match[0])

    whole = re.fullmatch(r"\$\{?(\w+)\}?", word)
    if whole:  # not quoted: split at spaces
        return variables.get(whole[1], word).split()
    parts = re.split(r"('[^']*')", word)
    text = "".join(x if x.startswith("'") else re.sub(r"\$\{?(\w+)\}?", value, x) for x in parts)
    return shlex.split(text)


def _command(words: list[str]) -> Iterator[list[str]]:
    for place, word in enumerate(words):
        if re.search(r"(^|/)python3?$", word) and words[place + 1 : place + 2] == ["-m"]:
            yield words[place + 2 :]
            return
        if re.search(r"(^|/)l2rm$", word):
            yield ["l2rm", *words[place + 1 :]]
            return
    for word in words:
        if " -m " in word or re.search(r"(^|[ /])l2rm ", word):
            yield from commands(word)


def command_problem(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Why a command cannot run, as far as its flags and config fields say; None for no reason.

    A config in a directory that only has a placeholder for its name (PATH/mine.py) is left out. A
    small BERT takes the place of pretrained weights that have one (--pretrained=BERT_DIR).
    """
    module, *arguments = (word for word in words if not re.match(r"--config=[A-Z]+/", word))
    small = f"--pretrained={ROOT / 'tests' / 'golden' / 'pretrained' / 'bert'}"
    arguments = [re.sub(r"--pretrained=[A-Z_]+$", small, word) for word in arguments]
    with monkeypatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [module, *arguments])
        try:
            if module in ("l2rm", "l2rm_jax", "l2rm_jax.main"):
                _parse_flags()
            elif module.split(".")[0] in ("experiments", "tests"):
                _parse_arguments(module, patch)
        except ModuleNotFoundError as error:
            if error.name != "torch":  # the extra that one benchmark needs
                return f"{' '.join(words)}: {error}"
        except (Exception, SystemExit) as error:
            return f"{' '.join(words)}: {type(error).__name__}: {error}"
    return None


def _parse_flags() -> None:
    """Runs the command line's own parser on `sys.argv`, then checks the config's values, if any."""
    if answer(sys.argv[1:], MODES) is None:
        command = parse(sys.argv[1:], MODES)
        if command.config is not None:
            is_audit = command.mode.name == "audit"
            (check_detector_of_audit if is_audit else check_settings)(command.config)


class _ParsedError(Exception):
    """Ends a script right after its arguments are parsed."""


def _parse_arguments(module: str, patch: pytest.MonkeyPatch) -> None:
    """Runs a script up to `parse_args`, then checks the configs that --set and --vary make."""
    script = importlib.import_module(module)
    if hasattr(script, "__path__"):
        script = importlib.import_module(f"{module}.__main__")
    if "parse_arg" not in inspect.getsource(script):
        if sys.argv[1:]:
            raise ValueError(f"{sys.argv[1:]}: {module} takes no arguments")
        return
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, *arguments):
        raise _ParsedError(parse_args(parser, *arguments))

    def refuse(parser, message):
        raise ValueError(message)

    patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    patch.setattr(argparse.ArgumentParser, "error", refuse)
    try:
        script.main()
    except _ParsedError as stop:
        options = vars(stop.args[0])
        if options.get("suite"):  # its runs are checked one by one in test_benchmark.py
            script.asked(stop.args[0])
            return
    config = sweep.load_config(options["config"]) if options.get("config") else default()
    for _, each in sweep.grid(config, options.get("vary", {}), options.get("set", {})):
        check_settings(each)
