"""Evaluate finished runs and published checkpoints, alone and together."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.data.dataset import read_split
from l2rm_jax.data.text import punkt
from l2rm_jax.errors import ConfigError
from l2rm_jax.parallel import Replicas
from l2rm_jax.recall import check_protocols, recall_rows
from l2rm_jax.run import open_run, read_data
from l2rm_jax.run_config import changed, read_config
from l2rm_jax.scoring import Scorer
from l2rm_jax.torch_checkpoint import fit_data, read_checkpoint, trained_vocabulary
from l2rm_jax.torch_import import model_from_state_dict, variables_from_state_dict


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
        config = changed(read_config(workdir), changes)
        with open_run(config, read_data(config, workdir), workdir, Replicas()) as run:
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


def evaluate_checkpoints(
    config: ConfigDict, paths: Sequence[str | Path]
) -> dict[str, dict[str, float]]:
    """Test recalls of published PyTorch checkpoints and, of several, of their mean similarities.

    A file of two networks counts as one model, the mean of both, as its authors evaluate it.

    Args:
      config: `data` says where the test split and the vocabulary are, `evaluation` how to
        evaluate. Everything about the networks is read from the files.
      paths: the files.

    Raises:
      L2RMError: a file or the data are not what they should be, or do not fit each other.
    """
    vocabulary = trained_vocabulary(config.data)
    sentences = punkt() if config.data.split_sentences else None
    test = read_split(config.data.path, config.data.test_split, vocabulary, sentences)
    check_protocols(config.evaluation.protocol, len(test.images), test.captions_per_image)
    shape = test.images.shape[1:]
    # Every file is read and checked before the first is scored.
    checkpoints = {
        path: {
            key: fit_data(weights, len(vocabulary), shape, f"{path}: {key}")
            for key, weights in read_checkpoint(path).networks.items()
        }
        for path in paths
    }
    replicas = Replicas()
    scorer = functools.cache(lambda model: Scorer(model, replicas, config.evaluation.batch_size))
    rows: dict[str, dict[str, float]] = {}
    total = 0.0
    for path, networks in checkpoints.items():
        own = 0.0
        for key, weights in networks.items():
            model = model_from_state_dict(weights, dropout=0.0, chunk=config.model.chunk)
            variables = replicas.replicate(variables_from_state_dict(weights))
            sims = scorer(model).similarities(variables, test)
            own = own + sims / len(networks)
            if len(networks) > 1:
                rows |= _named(f"{path} ({key})", sims, test, config)
        rows |= _named(str(path), own, test, config)
        total = total + own / len(checkpoints)
    if len(checkpoints) > 1:
        rows |= _named(f"mean of {len(checkpoints)} checkpoints", total, test, config)
    return rows


def _named(name: str, sims, test, config: ConfigDict) -> dict[str, dict[str, float]]:
    found = recall_rows(sims, test.captions_per_image, config.evaluation.protocol)
    return {f"{name}, {protocol}": row for protocol, row in found.items()}
