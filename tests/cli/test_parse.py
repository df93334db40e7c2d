"""Commands parsed: modes, flags, fields, and the config that they name."""

import re

import pytest

from l2rm_jax import config as defaults
from l2rm_jax.config import flat
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.config_file import write_config
from tests.cli.modes import parsed
from tests.models.pretrained.golden import GOLDEN, KINDS


def refused(line: str) -> tuple[str, str | None]:
    """The message and the hint of a line that is refused."""
    with pytest.raises(ConfigError) as caught:
        parsed(line)
    [message] = caught.value.args
    return message, caught.value.hint


def test_a_command_without_words_trains_the_built_in_data_set():
    command = parsed("")
    assert command.mode.name == "train" and command.is_built_in
    assert flat(command.config) == flat(defaults.get_config())
    assert command["workdir"] is None and command.changes == {}


def test_values_have_the_types_of_their_flags_and_fields():
    command = parsed(
        "train --workdir a --config.seed=3 --config.optim.learning_rate=1 --config.method rcl "
        "--config.data.split_sentences --config.train.tensorboard=false"
    )
    assert command["workdir"] == "a"
    assert command.changes == {
        "seed": 3,
        "optim.learning_rate": 1.0,
        "method": "rcl",
        "data.split_sentences": True,
        "train.tensorboard": False,
    }
    assert flat(command.config).items() >= command.changes.items()
    command = parsed("rank --workdir=a --workdir=b --best=2")
    assert command["workdir"] == ["a", "b"] and command["best"] == 2 and command.config is None
    assert parsed("rank")["workdir"] == []


def test_the_last_value_of_a_field_counts_and_tuples_are_put_together():
    assert parsed("--config.seed=1 --config.seed=2").config.seed == 2
    both = ("l2rm_jax.methods.example.focal", "tests.plugins.bilinear")
    for line in (
        "--config.plugins=l2rm_jax.methods.example.focal --config.plugins=tests.plugins.bilinear",
        "--config.plugins=l2rm_jax.methods.example.focal,tests.plugins.bilinear",
        f"--config.plugins={both}".replace(" ", ""),
    ):
        assert parsed(line).config.plugins == both


def test_plugins_are_imported_before_their_fields_are_read():
    command = parsed("--config.plugins=l2rm_jax.methods.example.focal --config.own.gamma=1.5")
    assert command.config.plugins == ("l2rm_jax.methods.example.focal",)
    assert command.config.own.gamma == 1.5


@pytest.mark.parametrize("line", ["--data=some/pairs", "--config.data.path=some/pairs/"])
def test_data_of_ones_own_take_the_librarys_defaults(line):
    command = parsed(line)
    expected = flat(defaults.default()) | {"data.name": "pairs", **command.changes}
    assert flat(command.config) == expected and not command.is_built_in
    assert parsed(f"{line} --config.data.name=x").config.data.name == "x"


def test_data_are_named_by_directory_and_split(tmp_path):
    assert parsed("--data=D:dev").changes == {"data.path": "D", "data.test_split": "dev"}
    assert parsed("--data=D --config.data.path=D").changes == {"data.path": "D"}
    odd = tmp_path / "a:b"
    odd.mkdir()
    assert parsed(f"--data={odd}").changes == {"data.path": str(odd)}
    assert parsed(f"--data={odd}:dev").changes["data.test_split"] == "dev"


def test_a_pretrained_directory_sets_the_encoder_that_it_holds(tmp_path):
    for kind in KINDS:
        model = parsed(f"--data=D --pretrained={GOLDEN / kind}").config.model
        assert (model.text_encoder, model.pretrained) == (kind, str(GOLDEN / kind))
    both = f"--data=D --pretrained={GOLDEN / 'clip'} --config.model.text_encoder=bert"
    assert {"--pretrained=clip", "--config.model.text_encoder=bert"} <= set(
        re.split(r"[ :,;]+", refused(both)[0])
    )
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(DataError, match=r"model_type.*t5"):
        parsed(f"--pretrained={tmp_path}")
    with pytest.raises(DataError, match="nowhere"):
        parsed("--pretrained=nowhere")


def test_a_run_is_parsed_with_its_own_config(tmp_path):
    config = defaults.default(["l2rm_jax.methods.example.focal"])
    config.data.name, config.own.gamma = "mine", 0.5
    write_config(tmp_path, config)
    command = parsed(f"--workdir={tmp_path} --config.own.gamma=1.5")
    assert command.config.data.name == "mine" and command.config.own.gamma == 1.5
    named = parsed(f"--config=configs/f30k.py --workdir={tmp_path}")
    assert named.config.data.name == "f30k" and named.config_name == "configs/f30k.py"
    assert named.config.plugins == ("l2rm_jax.methods.example.focal",)


@pytest.mark.parametrize(
    ("line", "named", "hint"),
    [
        ("chek --data=D", "chek", "check --data=D"),
        ("--mode=rnk", "rnk", "l2rm rank"),
        ("help", "help", "l2rm --help"),
        ("--workdirs=a", "--workdirs", "--workdir=a"),
        ("--seed=3", "--seed", "--config.seed=3"),
        ("--train.epochs=3", "--train.epochs", "--config.train.epochs=3"),
        ("--learning_rate=3", "--learning_rate", "--config.optim.learning_rate=3"),
        ("rank --zzzz", "--zzzz", "l2rm rank --help"),
        ("--best=3", "--best", "l2rm rank --best=3"),
        ("rank --config.seed=1", "--config.seed", "l2rm check --config.seed=1"),
        ("--workdir", "--workdir", None),
        ("--workdir=", "--workdir", None),
        ("--workdir=a --workdir=b", "--workdir", None),
        ("--config=a --config=b", "--config", None),
        ("rank --best=x", "--best: found 'x'", None),
        ("--config.train.epochs=2.5", "train.epochs: found '2.5'", None),
        ("--config.optim.learning_rate=x", "rate: found 'x'", None),
        ("--config.train.tensorboard=x", "board: found 'x'", None),
        ("--config.seed", "config.seed", None),
        (
            "--config.optim.learning_rat=1e-3",
            "config.optim.learning_rat",
            "--config.optim.learning_rate=1e-3",
        ),
        ("--config.sed=1", "config.sed", "--config.seed=1"),
        ("--data=D: ", "--data: found 'D:'", None),
        ("--data=A --config.data.path=B", "--config.data.path=B", None),
        ("--data=A:b --config.data.test_split=c", "--config.data.test_split", None),
    ],
)
def test_mistakes_name_the_nearest_right_thing(line, named, hint):
    message, next_step = refused(line)
    assert named in message
    assert (next_step or "").endswith(hint or "") and bool(next_step) == bool(hint)


def test_a_file_without_a_mode_is_to_be_audited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").touch()
    assert refused("pairs.csv --by=shop")[1] == "l2rm audit --source=pairs.csv --by=shop"
    assert refused("other.csv")[1] == "l2rm --help"
