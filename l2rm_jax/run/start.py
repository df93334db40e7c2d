"""Start a run from the model that another run has trained (`model.start`)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.data.train_pairs import Data
from l2rm_jax.devices.hosts import is_primary, wait_for_file
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import Method
from l2rm_jax.methods.base import TrainState
from l2rm_jax.methods.learned_scale import GROUP
from l2rm_jax.run.load_trained import PARTS, Trained, read_trained

START_FILE = "start.npz"  # in the work directory: the run no longer needs the other one


def check_start_fields(config: ConfigDict, method: Method) -> None:
    """Check that the method can start from a model.

    Raises:
      ConfigError: the method is a fit in closed form.
    """
    if config.model.start and method.plan is None:
        raise ConfigError(
            f"model.start: found {config.model.start!r}, expected none, as {config.method} is "
            "fitted in closed form"
        )


def add_start(config: ConfigDict, data: Data, workdir: str | Path) -> Data:
    """Add the arrays of the model that the run starts from, and keep a copy in its directory.

    Raises:
      ConfigError: there is no run in `model.start`, or it has another vocabulary.
      CheckpointError: that run has not finished an epoch, or its checkpoint is damaged.
    """
    if not config.model.start:
        return data
    path = Path(workdir) / START_FILE
    if is_primary() and not path.exists():
        trained = read_trained(config.model.start)
        _check_words(trained, data, config.model.start)
        parts = {part: getattr(trained.state, part) for part in PARTS}
        replace_arrays(path, flatten_dict(parts, sep="/"))
    wait_for_file(path)
    with open_arrays(path, "the model of model.start", "remove it to read it again") as file:
        return replace(data, start=dict(file))


def with_start(state: TrainState, start: Mapping[str, np.ndarray]) -> TrainState:
    """Replace the arrays of a first state by a trained model, the same for each network.

    Numbers of the loss that the other run has not learned keep their first values.

    Raises:
      ConfigError: the models differ.
    """
    own = flatten_dict({part: getattr(state, part) for part in PARTS}, sep="/")
    for name, array in own.items():
        given = start.get(name)
        if given is None and name.startswith(f"params/{GROUP}/"):
            continue
        if given is None or array.shape not in (given.shape, (*array.shape[:1], *given.shape)):
            found = "none" if given is None else list(given.shape)
            raise ConfigError(
                f"model.start: found {found} for {name}, expected {list(array.shape)}: the two "
                "models need the same head, sizes and data of the same form"
            )
        own[name] = jnp.broadcast_to(jnp.asarray(given, array.dtype), array.shape)
    return state.replace(**{part: {} for part in PARTS} | unflatten_dict(own, sep="/"))


def _check_words(trained: Trained, data: Data, directory: str) -> None:
    """Raise `ConfigError` if the words of the two runs have other numbers."""
    words = trained.vocabulary
    if isinstance(words, Vocabulary) and words != data.vocabulary:
        raise ConfigError(
            f"model.start: {directory} has another vocabulary; set "
            f"data.vocabulary={directory}/vocabulary.json"
        )
