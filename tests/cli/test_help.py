"""Screens of --help and --version."""

import io
import re
import shlex
import sys

import pytest

from l2rm_jax import config as defaults
from l2rm_jax.cli.help import answer, fields_screen, show
from l2rm_jax.cli.mode import modes_with_source
from l2rm_jax.cli.words import split_words
from l2rm_jax.config import flat
from l2rm_jax.errors import ConfigError
from l2rm_jax.main import MODES
from l2rm_jax.version import __version__


def help_of(line: str) -> str:
    text = answer(line.split(), MODES)
    assert max(map(len, text.splitlines())) <= 80
    return text


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_first_screen_has_the_modes_and_then_the_fields(flag):
    lines = help_of(flag).splitlines()
    assert "usage: l2rm [MODE] [SOURCE] [--config=NAME]" in lines[1]
    for mode in ("import", "weights", "check", "audit", "evaluate"):
        assert any(line.split()[:1] == [mode] for line in lines), mode
    train = lines[lines.index("--config.train.FIELD=VALUE") + 1].split()
    assert train[0] == "batch_size" and train[-1] == "[128]"
    for name in flat(defaults.default()):
        assert any(line.split()[:1] == [name.rpartition(".")[2]] for line in lines), name


def test_help_with_a_config_shows_its_values(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from l2rm_jax.config import default\ndef get_config():\n    config = default()\n"
        "    config.data.name = 'mine'\n    config.plugins = ('l2rm_jax.methods.example.focal',)\n"
        "    config.train.epochs = 7\n    return config\n"
    )
    text = " ".join(fields_screen(str(file)).split())
    for value in ("[mine]", "[5 warm-up + 7]", "[0.0002]", "gamma [2.0]"):
        assert value in text


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_mode_shows_its_flags_alone(mode):
    text = help_of(f"{mode.name} --help")
    assert text == help_of(f"--mode={mode.name} -h")
    shown = {
        re.split("[= ]", line.strip())[0] for line in text.splitlines() if line.startswith("  --")
    }
    assert shown == {f"--{flag.name}" for flag in mode.flags}
    assert text.endswith(f"example:\n  {mode.example}")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_example_of_a_mode_is_right(mode):
    given = split_words(shlex.split(mode.example)[1:], modes_with_source(MODES))
    assert (given.mode or "train") == mode.name
    assert all(mode.takes(name) for name, _ in given.flags)


def test_version_and_no_question():
    assert answer(["--version"], MODES) == f"l2rm_jax {__version__}"
    assert answer(["train", "--config.seed=1"], MODES) is None


def test_help_of_an_unknown_mode_is_an_error():
    with pytest.raises(ConfigError, match="evalute") as caught:
        answer(["evalute", "--help"], MODES)
    assert caught.value.hint == "l2rm evaluate"


def test_help_goes_to_standard_output(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    show("text")
    assert capsys.readouterr() == ("text\n", "")
