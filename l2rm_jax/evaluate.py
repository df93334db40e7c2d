"""Evaluate finished runs, alone and together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.checkpoint import read_config
from l2rm_jax.errors import ConfigError
from l2rm_jax.parallel import Replicas
from l2rm_jax.recall import recall_rows
from l2rm_jax.train import open_run, read_data


def evaluate_runs(
    workdirs: Sequence[str | Path], changes: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, dict[str, float]]:
    """Test recalls of the best model of each run and, of several, of their mean similarities.

    SGRAF is the mean of a run with head sgr and one with head saf.

    Args:
      workdirs: directories of the runs.
      changes: config keys that are to differ from the runs' own: where the data are now
        (`data.path`) and how to evaluate (`evaluation.*`).

    Raises:
      ConfigError: a directory holds no run, or the runs test on different captions.
    """
    for key in changes:
        if key != "data.path" and not key.startswith("evaluation."):
            raise ConfigError(
                f"{key}: evaluation uses the config that a run was trained with; only data.path "
                "and evaluation.* can be changed"
            )
    rows: dict[str, dict[str, float]] = {}
    total, captions = 0.0, None
    for workdir in workdirs:
        config = ConfigDict(read_config(workdir))
        config.update_from_flattened_dict(dict(changes))
        data = read_data(config, workdir)
        with open_run(config, data, workdir, Replicas()) as run:
            test = run.data.test
            if captions is not None and captions != test.captions:
                raise ConfigError(f"{workdir}: its test captions differ from {workdirs[0]}'s")
            captions = test.captions
            sims = run.test_similarities()
        total = total + sims
        rows |= _named(f"{workdir} ({config.model.head})", sims, test, config)
    if len(workdirs) > 1:
        rows |= _named(f"mean of {len(workdirs)} runs", total / len(workdirs), test, config)
    return rows


def _named(name: str, sims, test, config: ConfigDict) -> dict[str, dict[str, float]]:
    found = recall_rows(sims, test.captions_per_image, config.evaluation.folds)
    return {f"{name}, {size}": row for size, row in found.items()}
