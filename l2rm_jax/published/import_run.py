"""Start a run of ours from a published PyTorch checkpoint."""

import logging
from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import keep_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.cost import resize_cost
from l2rm_jax.models.retrieval import RetrievalModel
from l2rm_jax.published.checkpoint import fit_data, read_checkpoint, trained_vocabulary
from l2rm_jax.published.conversion import (
    cost_from_state_dict,
    model_from_state_dict,
    variables_from_state_dict,
)
from l2rm_jax.run.config_file import write_config
from l2rm_jax.run.inputs import read_data
from l2rm_jax.run.log import RunLog
from l2rm_jax.run.run import open_run

_log = logging.getLogger(__name__)


def import_checkpoint(
    config: ConfigDict, path: str | Path, workdir: str | Path, replicas: Replicas | None = None
) -> dict[str, float]:
    """Makes `workdir` a run whose warm-up is done and whose model is the one in the file.

    Published files hold no optimiser state, so `train` continues with a fresh one, for
    `train.epochs` epochs. L2RM's learned cost comes along; for another batch size, the part of it
    that means something there (`resize_cost`).

    Args:
      config: of the run; the sizes of the model are replaced by the file's.
      path: a file with one network.
      workdir: a directory that is empty or does not exist.
      replicas: devices; all local ones when None.

    Returns:
      Recalls of the validation split.

    Raises:
      L2RMError: the file, the config, the data or the directory cannot be used; nothing is written.
    """
    workdir = Path(workdir)
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ConfigError(f"{workdir}: is there already, expected a new or an empty directory")
    vocabulary = trained_vocabulary(config.data)
    networks, cost = read_checkpoint(path)
    if len(networks) > 1:
        raise ConfigError(
            f"{path}: holds {len(networks)} networks ({', '.join(networks)}); a run has one. "
            "Their ensemble can be evaluated"
        )
    [weights] = networks.values()
    images = RegionFeatures.read(Path(config.data.path) / "train_ims.npy")
    weights = fit_data(weights, len(vocabulary), images.shape[1:], str(path))
    config = _with_sizes(config, model_from_state_dict(weights))
    data = read_data(config, workdir)
    with open_run(config, data, workdir, replicas or Replicas()) as run:
        row = run.adopt(variables_from_state_dict(weights), _learned_cost(config, cost, path))
        keep_data(run.data, workdir)
        with RunLog(workdir, run.header) as log:
            log.write("import", run.step, checkpoint=str(path), **row)
        run.checkpoints.wait()
        # Last: from here on, the directory holds a run.
        write_config(workdir, config)
    return row


def _with_sizes(config: ConfigDict, model: RetrievalModel) -> ConfigDict:
    config = config.copy_and_resolve_references()
    names = ["head", "embed_dim", "word_dim", "sim_dim"]
    names += ["sgr_steps"] if model.head == "sgr" else []
    for name in names:
        config.model[name] = getattr(model, name)
    return config


def _learned_cost(config: ConfigDict, weights: dict | None, path: str | Path) -> dict | None:
    """The file's learned cost for this run's batches, where the run has one."""
    if config.method != "l2rm" or weights is None:
        _log.info("%s: no learned cost is taken over", path)
        return None
    return resize_cost(cost_from_state_dict(weights), config.train.batch_size)
