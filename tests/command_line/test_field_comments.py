"""The fields of the config with their comments."""

import ast

from l2rm_jax.command_line.field_comments import config_source, read_fields
from l2rm_jax.config import default, flat

SOURCE = '''
def default():
    """A config."""
    config = ConfigDict()
    config.seed = 0  # number of `a_b`, <x>

    # What a run
    # trains.
    config.train = train = ConfigDict()
    # Not of epochs.

    # One of
    # a|b.
    train.kind = (
        "a"  # or b
    )
    train.epochs = 3  # from _x
    config.own = ConfigDict(import_plugins(config.plugins))  # of plug-ins
    config.plugins = tuple(plugins)  # modules
    return config.lock()
'''


def test_defaults_are_those_of_the_config():
    values = flat(default())
    _, fields = read_fields(config_source())
    assert {row.name: ast.literal_eval(row.default) for row in fields} == values


def test_comments_at_the_end_of_a_line_and_above_it():
    about, fields = read_fields(SOURCE)
    assert about == {"": "", "train": "What a run trains.", "own": "of plug-ins"}
    assert fields == [
        ("", "seed", "0", "number of `a_b`, <x>"),
        ("train", "train.kind", '"a"', "One of a|b. or b"),
        ("train", "train.epochs", "3", "from _x"),
        ("", "plugins", "()", "modules"),
    ]
