"""`~` at the start of a path is the home directory, in flags, in config fields and in Python."""

import os
from pathlib import Path

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax import main
from l2rm_jax.cli.parse import parse
from l2rm_jax.cli.source import IMPORT_FLAGS
from l2rm_jax.config import FIELDS
from l2rm_jax.errors import ConfigError, expand_home
from l2rm_jax.run.choose_encoder import make_encoder
from l2rm_jax.run.config_file import load_config
from tests.audit.made import make_audit


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The home directory; nothing may be made in the current one."""
    for name in ("home", "current"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "current")
    yield tmp_path / "home"
    assert not os.path.lexists("~")


def path_flags():
    for mode in main.MODES:
        for flag in mode.flags:
            if flag.is_path and flag.name not in ("pretrained", "data"):
                yield pytest.param(mode.name, flag, id=f"{mode.name}-{flag.name}")


@pytest.mark.parametrize(("mode", "flag"), [*path_flags()])
def test_every_flag_that_takes_a_path(home, mode, flag):
    needs_source = mode in ("audit", "check", "train") and flag.name in IMPORT_FLAGS
    source = ["pairs.csv"] if needs_source else []
    (home.parent / "current" / "pairs.csv").touch()
    command = parse([mode, *source, f"--{flag.name}=~/made/x"], main.MODES)
    value = command[flag.name]
    assert value == ([f"{home}/made/x"] if flag.many else f"{home}/made/x")


def test_flags_that_set_fields(home):
    (home / "x:y").mkdir()
    command = parse(["check", "--data", "~/x:y"], main.MODES)
    assert command.config.data.path == f"{home}/x:y"
    command = parse(["evaluate", "--zero_shot", "--data=~/x:dev"], main.MODES)
    assert (command.config.data.path, command.config.data.test_split) == (f"{home}/x", "dev")


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.is_path])
def test_every_field_that_is_a_path(home, name):
    value = f"--config.{name}=~/made/x"
    assert parse(["train", value], main.MODES).changes[name] == f"{home}/made/x"
    (home / "mine.py").write_text(
        "from l2rm_jax.config import get_config as built_in\n"
        "def get_config():\n"
        f"    config = built_in()\n    config.{name} = '~/made/x'\n    return config\n"
    )
    section, _, key = name.partition(".")
    assert load_config("~/mine.py")[section][key] == f"{home}/made/x"


def test_every_field_whose_meaning_is_a_file_says_so():
    words = ("directory", "file (", ".npy with", "json file", "csv file", "glove text")
    named = {
        name for name, field in FIELDS.items() if any(x in field.meaning.lower() for x in words)
    }
    paths = {name for name, field in FIELDS.items() if field.is_path}
    assert named - paths <= {"judgement.detector", "audit.by", "model.text_encoder"}


def test_captions_are_no_paths(home):
    command = parse(["search", "--query=~/a wave"], main.MODES)
    assert command["query"] == ["~/a wave"]


@pytest.mark.parametrize("spec", ["pixels:~/clip", "timm:~/a+transformers:~/b"])
def test_encoders_in_the_home_directory(home, spec):
    with pytest.raises(ConfigError, match=f"{home}/"):
        make_encoder(spec)


def test_paths_in_python(home):
    audit = make_audit()
    audit.write("~/made/audit")
    audit.write(Path("~/made/other"))
    assert len(l2rm_jax.open_audit("~/made/audit").pairs) == len(audit.pairs)
    assert (home / "made/other/judgement.npz").is_file()
    (home / "data").mkdir()
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    for side in ("ims", "caps"):
        np.save(home / f"data/train_{side}.npy", vectors)
    assert len(l2rm_jax.open_pairs("~/data")) == len(l2rm_jax.open_pairs(Path("~/data"))) == 200
    with pytest.raises(ConfigError, match=f"{home}/none"):
        l2rm_jax.load("~/none")


def test_without_a_home_directory_a_tilde_is_refused(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for path in ("~", "~/data"):
        with pytest.raises(ConfigError, match="home"):
            expand_home(path)


@pytest.mark.parametrize("name", ["~draft.csv", "a/~/b", "./~", ""])
def test_other_names_stay(home, name):
    assert expand_home(name) == name
