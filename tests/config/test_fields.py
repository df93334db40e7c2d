"""Table of the config fields: names, defaults, and the values that are allowed."""

import pytest

from l2rm_jax.config import FIELDS, SECTIONS, default, flat
from l2rm_jax.config.field import at_least, between, one_of
from l2rm_jax.errors import ConfigError
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.inputs import check_fields


def test_a_config_has_the_fields_of_the_table_and_their_defaults():
    assert flat(default()) == {name: field.default for name, field in FIELDS.items()}
    assert {name.rpartition(".")[0] for name in FIELDS} | {"own"} == set(SECTIONS)


def test_every_default_is_allowed_and_every_field_has_a_meaning():
    for name, field in FIELDS.items():
        assert field.meaning == field.meaning.strip() != "", name
        assert field.allowed is None or field.allowed.holds(field.default), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train.batch_size", 1),
        ("judgement.folds", 2),
        ("optim.schedule", "linear"),
        ("optim.learning_rate", 0.0),
        ("model.base_dropout", -0.5),
        ("loss.tau", float("nan")),
        ("data.train_images", 2**80),
        ("data.path", "a\0b"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(name, value):
    check_fields(default())
    with pytest.raises(ConfigError) as error:
        check_fields(with_changes(default(), {name: value}))
    assert str(error.value).startswith(f"{name}: found {value!r}")


def test_ranges_hold_at_their_ends():
    assert [between(1, 3).holds(x) for x in (0, 1, 3, 4)] == [False, True, True, False]
    assert [at_least(2).holds(x) for x in (1, 2)] == [False, True]
    assert one_of("a", "b").words == "a or b" and not one_of("a").holds("b")
