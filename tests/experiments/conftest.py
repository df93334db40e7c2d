"""Fixtures of several tests of experiments."""

import pytest

from experiments.papers import sweep
from l2rm_jax.run.config_file import write_config
from tests.experiments.finished_runs import leave_run


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The names of the runs that were trained so far."""
    names = []

    def train(config, workdir):
        names.append(workdir.name)
        leave_run(config.copy_and_resolve_references(), workdir, [100.0, 300.0, 200.0])
        write_config(workdir, config)

    monkeypatch.setattr(sweep, "train", train)
    monkeypatch.setattr(sweep.gc, "collect", lambda: None)  # half a second, and nothing is compiled
    return names
