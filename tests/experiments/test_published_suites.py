"""Suites with published settings: each row has its full size, and a run accepts it."""

from pathlib import Path

import pytest

from experiments.benchmark.suite import find_suite, make_cell
from l2rm_jax.methods import make_method
from l2rm_jax.models import make_model
from l2rm_jax.run.inputs import check_settings


@pytest.mark.parametrize("name", ["f30k", "coco", "cc152k"])
def test_every_row_is_accepted(name):
    suite = find_suite(name)
    noise = {"protocol": suite.grids[0].protocols[0], "rate": suite.grids[0].rates[0]}
    for row in suite.rows:
        config = make_cell(suite, row, "saf", noise, 0, Path("data")).config
        check_settings(config)
        assert (config.model.embed_dim, config.model.sim_dim) == (1024, 256)
        assert make_method(make_model(config, 300), config)
