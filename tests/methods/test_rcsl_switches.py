"""The parts of RCSL's loss, each switched off."""

import jax
import pytest

from l2rm_jax.errors import ConfigError
from tests.grid import MAIN, batches, make_cell, tiny_config


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"regulariser": False}, {"loss_alignment", "loss_uniformity"}),
        ({"paired_loss": False}, {"loss_paired"}),
        ({"mining": "none"}, {"loss_mining"}),
        ({"mining": "images"}, set()),
    ],
)
def test_parts_of_the_loss_that_are_switched_off(fields, missing):
    """RCSL Tab. 6."""
    config = tiny_config("rcsl", "vse")
    config.rcsl.update(fields)
    cell = make_cell(config)
    _, metrics = jax.eval_shape(cell.method.step, cell.state, next(batches(cell, MAIN)))
    terms = {"loss_paired", "loss_mining", "loss_alignment", "loss_uniformity"}
    assert {name for name in metrics if name.startswith("loss_")} == terms - missing
    assert ("mining" in cell.method.losses) == ("loss_mining" not in missing)


def test_rcsl_without_any_loss_of_the_learning_stage_is_refused():
    config = tiny_config("rcsl", "vse")
    config.rcsl.update(regulariser=False, paired_loss=False)
    with pytest.raises(ConfigError, match="found False for both"):
        make_cell(config)
