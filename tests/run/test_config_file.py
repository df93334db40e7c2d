"""Config of a work directory: the same, another one, damaged."""

import os

import pytest

from l2rm_jax.config import default
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.config_file import (
    check_workdir,
    find_config,
    load_config,
    lock_workdir,
    read_config,
    shipped_configs,
    with_changes,
    write_config,
)


def test_config_of_the_same_run_is_accepted(tmp_path):
    config = with_changes(
        default(), {"optim.grad_clip": 1e9, "data.name": "mine", "mismatch.rate": 0}
    )
    check_workdir(tmp_path / "run", config)  # there is no run yet
    write_config(tmp_path / "run", config)
    check_workdir(tmp_path / "run", config)
    assert read_config(tmp_path / "run") == config and config.is_locked


def test_config_of_another_run_is_refused(tmp_path):
    write_config(tmp_path, default())
    saved = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError) as raised:
        check_workdir(tmp_path, with_changes(default(), {"seed": 2, "model.head": "saf"}))
    lines = [line.strip() for line in str(raised.value).splitlines()]
    assert lines[1:-1] == ['model.head: "sgr" -> "saf"', "seed: 0 -> 2"]
    assert (tmp_path / "config.json").read_text() == saved


@pytest.mark.parametrize(
    ("changes", "is_allowed"),
    [
        ({"train.epochs": 36}, True),
        ({"train.epochs": 34}, False),
        ({"train.warmup_epochs": 9}, False),
        ({"train.epochs": 36, "seed": 2}, False),
    ],
)
def test_a_run_may_get_more_epochs_and_nothing_else(tmp_path, changes, is_allowed):
    write_config(tmp_path, default())
    changed = with_changes(default(), changes)
    if is_allowed:
        assert check_workdir(tmp_path, changed).startswith("train.epochs: 35 -> 36; ")
    else:
        with pytest.raises(ConfigError, match=r"train\.epochs") as caught:
            check_workdir(f"{tmp_path}/", changed)
        assert caught.value.hint == f"--workdir={tmp_path}-2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"config\.json"),
        ('{"seed": ', r"config\.json"),
        ("[1]", r"config\.json: .*list"),
        ('{"l2rm": {"roh": 0.1}}', r"config\.json: config\.l2rm\.roh"),
        ('{"seed": "1"}', r"config\.json: seed: found '1'"),
    ],
)
def test_an_invalid_config_file_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(0)",
        "exit('two\\nlines')",
        "raise KeyboardInterrupt",
        "import sys; sys.exit()",
        "get_config = exit",
        "def get_config():\n    raise SystemExit",
        "def get_config(): pass",
    ],
)
def test_a_config_file_cannot_end_the_program_in_silence(tmp_path, code):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(
        ConfigError, match=r"mine\.py: (SystemExit|KeyboardInterrupt|get_config: found NoneType).*$"
    ):
        load_config(str(tmp_path / "mine.py"))


def test_the_nearest_run_is_the_hint_else_the_newest(tmp_path):
    for age, name in enumerate(("first", "second", "third")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        os.utime(tmp_path / name / "config.json", (age, age))
    for name, near in (("secnd", "second"), ("nope", "third")):
        with pytest.raises(ConfigError, match=name) as found:
            read_config(tmp_path / name)
        assert found.value.hint == f"--workdir={tmp_path / near}"


@pytest.mark.parametrize(
    "name", ["checkpoints/latest/30", "checkpoints/best/30", "metrics.jsonl", "results.json"]
)
def test_files_of_a_run_without_its_config_are_refused(tmp_path, name):
    """The lock and the empty checkpoint directories of a starting run are accepted."""
    with RunCheckpoints(tmp_path / "checkpoints"), lock_workdir(tmp_path):
        check_workdir(tmp_path, default())
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"{name}.*config\.json"):
        check_workdir(tmp_path, default())
    write_config(tmp_path, default())
    check_workdir(tmp_path, default())


def test_a_file_is_refused_as_work_directory(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="run: a file"):
        check_workdir(tmp_path / "run", default())


def test_shipped_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    """Files in the current directory do not change the meaning of a name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f30k").mkdir()
    (tmp_path / "f30k.py").write_text("")
    for name, file in shipped_configs().items():
        assert find_config(name) == (file, "")
        assert load_config(name) == load_config(str(file))
    assert load_config("f30k:rcl") == load_config(f"{shipped_configs()['f30k']}:rcl")
    for path in ("f30k.py", "./f30k.py", str(tmp_path / "f30k.py")):
        file, variant = find_config(f"{path}:rcl")
        assert file.resolve() == tmp_path / "f30k.py" and variant == "rcl"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("f30", "f30k"),
        ("f30:rcl", "f30k:rcl"),
        ("f30k:rlc", "f30k:rcl"),
        ("mime", "mine.py"),
        ("mime.py:b", "mine.py:b"),
        ("configs/f30k.py", "f30k"),
        ("nothing_like_it.py", None),
        ("", None),
    ],
)
def test_a_similar_config_is_suggested(tmp_path, monkeypatch, name, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(ConfigError, match=name.partition(":")[0] or None) as raised:
        load_config(name)
    assert raised.value.hint == (hint and f"--config={hint}")


def test_a_config_of_another_kind_is_named_and_no_hint(tmp_path):
    os.mkfifo(tmp_path / "mine.py")
    with pytest.raises(DataError, match=r"mine\.py: found a FIFO, expected a file") as caught:
        load_config(str(tmp_path / "mine.py"))
    assert caught.value.hint is None
