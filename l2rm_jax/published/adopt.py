"""Start a run from a published PyTorch checkpoint."""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import save_vocabulary_and_index
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.recall import chance_recalls
from l2rm_jax.methods import make_method
from l2rm_jax.methods.base import FRESH
from l2rm_jax.methods.cost import resize_cost
from l2rm_jax.methods.networks import stack
from l2rm_jax.models import REGIONS, WORDS, make_model
from l2rm_jax.published.checkpoint import read_checkpoint, read_trained_vocabulary, weights_for_data
from l2rm_jax.published.conversion import (
    cost_from_state_dict,
    model_fields,
    variables_from_state_dict,
)
from l2rm_jax.run.config_file import write_config
from l2rm_jax.run.initialise import adopt
from l2rm_jax.run.inputs import read_data
from l2rm_jax.run.log import RunLog
from l2rm_jax.run.opening import open_run

_log = logging.getLogger(__name__)


def adopt_checkpoint(
    config: ConfigDict, path: str | Path, workdir: str | Path, replicas: Replicas | None = None
) -> dict[str, dict[str, float]]:
    """Create a run in `workdir` that starts after warm-up with the model of a published file.

    Published files hold no optimiser state, so `train` continues with a new one, for
    `train.epochs` epochs. For the method `l2rm`, the learned cost is adopted too. It depends on
    the batch size; for another one, `resize_cost` keeps the part that still applies.

    Args:
      config: config of the run. The head and the sizes of the model are taken from the file.
      path: a file with as many networks as the method has.
      workdir: a directory that is empty or does not exist.
      replicas: the devices; None takes all.

    Returns:
      Rows of the result table (`recall_table`) of the validation split: the model, and `chance`.

    Raises:
      L2RMError: the file, the config, the data or the directory cannot be used; nothing has been
        written then.
    """
    workdir = Path(workdir)
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ConfigError(f"{workdir}: already exists, expected a new or an empty directory")
    for field, expected in (("text_encoder", WORDS), ("image_encoder", REGIONS)):
        if config.model[field] != expected:
            raise ConfigError(
                f"model.{field}: {config.model[field]!r}, expected {expected!r}, which published "
                "checkpoints have"
            )
    vocabulary = read_trained_vocabulary(config.data)
    networks, cost = read_checkpoint(path)
    images = RegionFeatures.read(Path(config.data.path) / "train_ims.npy")
    weights = [
        weights_for_data(each, len(vocabulary), images.shape[1:], f"{path}: {key}")
        for key, each in networks.items()
    ]
    config = _with_sizes(config, weights[0])
    method = make_method(make_model(config, len(vocabulary)), config)
    epochs = range(config.train.warmup_epochs, method.epochs or 0)
    if any(method.begin(epoch) == FRESH for epoch in epochs):
        raise ConfigError(
            f"method: {config.method} starts with a fresh network several times, so that nothing "
            "of the checkpoint would be left; expected another method"
        )
    expected = method.networks
    if len(weights) != expected:
        raise ConfigError(
            f"{path}: holds {len(weights)} networks ({', '.join(networks)}), expected {expected}, "
            f"as {config.method} has. Any number can be evaluated",
            hint=f"--config.train.networks={len(weights)}" if expected == 1 else None,
        )
    if any(model_fields(each) != model_fields(weights[0]) for each in weights):
        raise ConfigError(f"{path}: its networks have different heads or sizes, expected the same")
    variables = [variables_from_state_dict(each) for each in weights]
    data = read_data(config, workdir)
    with open_run(config, data, workdir, replicas or Replicas()) as run:
        learned = _learned_cost(config, cost, path)
        row = adopt(run, variables[0] if expected == 1 else stack(variables), learned)
        save_vocabulary_and_index(run.data, workdir)
        with RunLog(workdir, run.header) as log:
            log.write("adopt", run.step, checkpoint=str(path), **row)
        run.checkpoints.wait()
        # The config is written last, because it marks the directory as a run.
        write_config(workdir, config)
    chance = chance_recalls(len(data.dev.images), data.dev.captions_per_image)
    return {f"{path}, validation": row, "chance": chance}


def _with_sizes(config: ConfigDict, weights: Mapping[str, np.ndarray]) -> ConfigDict:
    """Copy the config, with the head and the sizes of the file's network."""
    config = config.copy_and_resolve_references()
    config.model.update(model_fields(weights))
    return config


def _learned_cost(config: ConfigDict, weights: dict | None, path: str | Path) -> dict | None:
    """The file's learned cost for this run's batch size; None unless file and method have one."""
    if config.method != "l2rm" or weights is None:
        _log.info("%s: no learned cost is adopted", path)
        return None
    return resize_cost(cost_from_state_dict(weights), config.train.batch_size)
