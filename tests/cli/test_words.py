"""Command lines, split into the mode and the flags."""

import pytest

from l2rm_jax.cli.words import Words, command_text, split_words
from l2rm_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "mode", "flags"),
    [
        ("", None, ()),
        ("check", "check", ()),
        ("--mode=check", "check", ()),
        ("--mode check --seed=1", "check", (("seed", "1"),)),
        ("check --mode=check", "check", ()),
        ("--workdir a --quick -hosts=2", None, (("workdir", "a"), ("quick", None), ("hosts", "2"))),
        ("--rate -1e-3 --path=a=b", None, (("rate", "-1e-3"), ("path", "a=b"))),
        ("--workdir=", None, (("workdir", ""),)),
    ],
)
def test_words_are_split(line, mode, flags):
    assert split_words(line.split()) == Words(mode, flags)


@pytest.mark.parametrize("line", ["audit a.csv --by=x", "audit --by=x a.csv", "audit --by x a.csv"])
def test_a_mode_may_take_a_source(line, tmp_path, monkeypatch):
    mode, flags = split_words(line.split(), ["audit"])
    assert mode == "audit" and dict(flags) == {"source": "a.csv", "by": "x"}
    with pytest.raises(ConfigError, match=r"^a\.csv: "):
        split_words(line.split(), ["import"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^a=b: "):
        split_words(["audit", "a=b"], ["audit"])
    (tmp_path / "a=b").touch()
    assert split_words(["audit", "a=b"], ["audit"]).flags == (("source", "a=b"),)


def test_a_source_needs_no_mode(tmp_path):
    assert split_words([str(tmp_path), "--by=x"]).flags == (("source", str(tmp_path)), ("by", "x"))
    assert split_words([str(tmp_path / "none")]).mode == str(tmp_path / "none")


@pytest.mark.parametrize(
    ("line", "named", "hint"),
    [
        ("config.seed=3", "config.seed=3", "--config.seed=3"),
        ("check seed=3", "seed=3", "--config.seed=3"),
        ("--workdir=a check", "check", "l2rm check --help"),
        ("train a", "a", "l2rm train --help"),
        ("--seed=1 --", "--", "l2rm --help"),
        ("--mode", "--mode", "l2rm --help"),
        ("check --mode=", "--mode", "l2rm --help"),
        ("train --mode=check", "--mode=check", "l2rm check"),
    ],
)
def test_other_words_are_refused(line, named, hint):
    with pytest.raises(ConfigError, match=f"^{named}: ") as caught:
        split_words(line.split())
    assert caught.value.hint == hint


def test_a_command_can_be_pasted():
    flags = (("data", "my data:test"), ("quick", None))
    assert command_text("check", flags) == "l2rm check '--data=my data:test' --quick"
