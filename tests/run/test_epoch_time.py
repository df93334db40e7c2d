"""The line on the time of an epoch on a CPU, before it is compiled."""

import pytest

from l2rm_jax.config import default
from l2rm_jax.run import epoch_time
from l2rm_jax.run.epoch_time import describe_epoch_time, describe_epochs, is_short


@pytest.fixture(autouse=True)
def _speed(monkeypatch):
    monkeypatch.setattr(epoch_time, "operations_per_second", lambda: 1e9)


def test_a_long_epoch_is_announced_with_the_fields_that_shorten_it():
    config = default()
    config.model.head, config.model.embed_dim = "saf", 1024
    assert describe_epoch_time(config, 1e9, 59, 500) == ""
    line = describe_epoch_time(config, 1e9, 150, 29_000)
    assert "2.5 minutes" in line and "29,000" in line and "1,024" in line and "saf" in line
    assert "2.0 hours" in describe_epoch_time(config, 2e9, 3600, 29_000)
    config.model.head = "vse"
    assert "model.head" not in describe_epoch_time(config, 1e9, 150, 29_000)


def test_only_large_models_are_counted():
    assert is_short(100_000, 500) and not is_short(15_000_000, 145_000)


def test_the_length_of_a_run():
    config = default()
    config.train.warmup_epochs, config.train.epochs = 5, 2
    assert describe_epochs(config, 7) == "7 epochs (5 warm-up + 2)"
    assert describe_epochs(config, 1) == "1 epoch"  # of a fit in closed form
