"""Markdown pages: links resolve, commands parse, imports work, tables are current."""

import argparse
import ast
import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.pages import results_page
from experiments.papers import sweep
from experiments.script import load_base
from l2rm_jax.audit.checked_inputs import check_detector_of_audit
from l2rm_jax.cli.help import answer
from l2rm_jax.cli.parse import parse
from l2rm_jax.config import default
from l2rm_jax.main import MODES
from l2rm_jax.run.inputs import check_settings

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("configs", "experiments", "l2rm_jax", "tests")
PAGES = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
PAGES += [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))]
# Pages with commands of many scripts or large suites.
LONG = ("experiments/README.md", "experiments/RESULTS.md", "experiments/results/README.md")
LONG += ("l2rm_jax/ot/MEASURED.md", "configs/PAPERS.md")
COMMAND_PAGES = [
    pytest.param(ROOT / name, id=name, marks=pytest.mark.slow if name in LONG else ())
    for name in (str(page.relative_to(ROOT)) for page in PAGES)
]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\"")
OPERATORS = ";&|<>()"


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return [code for _, found, code in FENCE.findall(page.read_text()) if found == language]


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each `python -m MODULE ...` (from the module on) and `l2rm ...`.

    Variables and loops that the script itself sets are expanded; a quoted command counts too.
    """
    script = re.sub(r"(^|\s)#[^\n]*|\b\d>(&\d)?", r"\1", script.replace("\\\n", " "))
    for name, *values in re.findall(r'^(?:for )?(\w+)(?:="([^"]*)"| in (\S+))', script, re.M):
        script = re.sub(rf"\$\{{?{name}\b\}}?", "".join(values).rstrip(";"), script)
    lexer = shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars=OPERATORS)
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token.strip(OPERATORS):
            words.append(token)
            continue
        for place, word in enumerate(words):
            if re.search(r"(^|/)l2rm$", word):
                yield ["l2rm", *words[place + 1 :]]
                break
            if re.search(r"python3?$", word) and words[place + 1 : place + 2] == ["-m"]:
                yield words[place + 2 :]
                break
            if re.search(r"python3? -m |l2rm ", word):
                yield from commands(word)
        words = []


def test_links_resolve():
    problems = []
    for page in PAGES:
        prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", page.read_text()))
        for target in map("".join, LINK.findall(prose)):
            if re.match(r"[a-z]+:", target):
                continue  # https:, mailto:
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.is_relative_to(ROOT) or not file.exists():
                problems.append(f"{page}: {target}: no such file")
            elif anchor and anchor not in anchors(file.read_text()):
                problems.append(f"{page}: {target}: no such heading")
    assert problems == []


def anchors(text: str) -> list[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#{1,6} +(.*?)[ #]*$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return [re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in plain]


@pytest.mark.parametrize("page", COMMAND_PAGES)
def test_commands_parse(page, monkeypatch):
    scripts = blocks(page, "bash")
    prose = FENCE.sub("", page.read_text())
    scripts += re.findall(r"`((?:python -m (?:l2rm_jax|experiments\.)[^`]* |l2rm )[^`]*)`", prose)
    monkeypatch.chdir(ROOT)
    for words in (found for script in scripts for found in commands(script)):
        if not words[0].startswith(("l2rm", "experiments.", "tests.")):
            continue
        with monkeypatch.context() as patch:
            try:
                check_command(words, patch)
            except ModuleNotFoundError as error:
                assert error.name == "torch"  # the extra that one benchmark needs
            except (Exception, SystemExit) as error:
                raise AssertionError(f"{page}: {' '.join(words)}: {error!r}") from error


def check_command(words: list[str], patch: pytest.MonkeyPatch) -> None:
    """Raise an error if flags or config fields of a command are wrong.

    A config in a directory that is only a placeholder (PATH/mine.py) is left out. A small BERT, or
    a CLIP for OSA, replaces pretrained weights whose directory is one (--pretrained=BERT_DIR), the
    example of a method the module that `l2rm new method focal` has written
    (--config.plugins=focal).
    """
    module, *arguments = (word for word in words if not re.match(r"--config=[A-Z]+/", word))
    small = f"--pretrained={ROOT / 'tests' / 'golden' / 'pretrained'}"
    kind = "clip" if any(word.endswith(":osa") for word in arguments) else "bert"
    arguments = [re.sub(r"--pretrained=[A-Z_]+$", f"{small}/{kind}", word) for word in arguments]
    example = "plugins=l2rm_jax.methods.example.focal"
    arguments = [re.sub(r"plugins=focal$", example, word) for word in arguments]
    if not module.startswith("l2rm"):
        check_script(module, arguments, patch)
    elif answer(arguments, MODES) is None:
        command = parse(arguments, MODES)
        if command.config is not None:
            is_audit = command.mode.name == "audit"
            (check_detector_of_audit if is_audit else check_settings)(command.config)


class ParsedError(Exception):
    """Ends a script right after its arguments are parsed."""


def check_script(module: str, arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    """Run a script up to `parse_args`, then check the configs that --set and --vary make."""
    script = importlib.import_module(module)
    if hasattr(script, "__path__"):
        script = importlib.import_module(f"{module}.__main__")
    if "parse_arg" not in inspect.getsource(script):
        assert not arguments, f"{module} takes no arguments"
        return
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, *inputs):
        raise ParsedError(parse_args(parser, *inputs))

    patch.setattr(sys, "argv", [module, *arguments])
    patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    with pytest.raises(ParsedError) as parsed:
        script.main()
    [found] = parsed.value.args
    options = vars(found)
    if options.get("suite"):
        script.asked(found)  # whose runs test_benchmark.py checks
        return
    config, settings = default(), options.get("set", {})
    if options.get("config"):
        config, settings = load_base(options["config"], settings)
    for _, each in sweep.grid(config, options.get("vary", {}), settings):
        check_settings(each)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_imports_in_python_code_work(page):
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            names = ast.unparse(node).split()
            if isinstance(node, ast.Import | ast.ImportFrom) and names[1].startswith("l2rm_jax"):
                exec(ast.unparse(node), {})


@pytest.mark.slow
def test_the_page_on_audits_from_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks(ROOT / "l2rm_jax" / "audit" / "NOTEBOOKS.md", "python"):
        exec(code, names)
    assert names["audit"].by("source")[0].value == "shop_b"
    assert str(names["again"].rate) == str(names["audit"].rate)


def test_functions_that_a_page_names_exist():
    """`file.py:name` or `file.py:Class.method`, with the file relative to the page."""
    named, missing = 0, []
    for page in PAGES:
        for name, path in re.findall(r"`(?![A-Z]+/)([\w/.]+\.py):([A-Za-z_.]+)`", page.read_text()):
            body, named = ast.parse((page.parent / name).read_text()).body, named + 1
            for part in path.split("."):
                found = [node for node in body if getattr(node, "name", None) == part]
                if not found:
                    missing.append(f"{page}: {name}: {path}")
                    break
                body = found[0].body
    assert missing == [] and named > 20


def test_code_of_a_file_is_shown_as_it_is():
    """Under a mark `<!-- from: FILE -->`."""
    block = re.compile(r"^<!-- from: (\S+) -->\n+```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for page in PAGES:
        for name, code in block.findall(page.read_text()):
            assert code in (ROOT / name).read_text(), f"{page}: {name}"


def test_tables_of_results_are_current():
    results_page.main(["--check", *map(str, PAGES)])
