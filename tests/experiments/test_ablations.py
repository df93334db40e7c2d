"""The ablation tables: every row is a config that a run accepts, and differs from the others."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.papers import ablations, plot_similarities
from experiments.papers.sweep import load_config
from l2rm_jax.config import flat
from l2rm_jax.errors import ConfigError
from l2rm_jax.run.inputs import check_settings


@pytest.mark.parametrize("name", ablations.TABLES)
def test_rows_of_a_table(name):
    runs = list(ablations.named_runs(name, load_config("scenes:quick"), {"seed": [0, 1]}, {}))
    _, rows = ablations.TABLES[name]
    assert len(runs) == 2 * len(rows) == len({run for _, run, _ in runs})
    configs = [config for _, _, config in runs]
    for config in configs:
        check_settings(config)
    assert len({json.dumps(flat(config), default=str) for config in configs}) == len(runs)
    if name == "rcsl6":
        assert {config.mismatch.paired_images for config in configs} == {20}


def test_settings_win_over_the_table():
    settings = {"mismatch.rate": 0.2, "train.epochs": 1}
    runs = list(ablations.named_runs("l2rm3", load_config("scenes"), {}, settings))
    assert {(config.mismatch.rate, config.train.epochs) for *_, config in runs} == {(0.2, 1)}


def test_table_of_no_run_is_refused(tmp_path):
    runs = ablations.named_runs("l2rm4", load_config("scenes"), {}, {})
    with pytest.raises(ConfigError, match="no run has finished"):
        ablations.table(runs, tmp_path)


def test_kinds_of_similarities():
    """Pairs 0 and 1 are of image 0, 2 of image 1; the captions of images 0 and 1 are swapped."""
    pairs = SimpleNamespace(caption_image=np.array([0, 0, 1]), stored_image=np.array([0, 1, 0]))
    rows = np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1]])  # the captions of each pair's batch
    found = np.argmax(plot_similarities.kinds(pairs, rows), axis=0)
    true_positive, false_positive, true_negative, false_negative = range(4)
    np.testing.assert_array_equal(
        found,
        [
            [true_positive, false_negative, true_negative],
            [false_positive, false_negative, true_negative],
            [false_positive, false_negative, false_negative],
        ],
    )
