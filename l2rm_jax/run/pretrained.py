"""The pretrained weights of a run: found, checked, and put into its first state."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Float16
from ml_collections import ConfigDict

from l2rm_jax.console import progress_bar
from l2rm_jax.data.batches import caption_batches
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import PRETRAINED
from l2rm_jax.data.pairs import Data, PairDataset
from l2rm_jax.data.pretrained import SOURCE_FILE, Pretrained, open_pretrained
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.methods.base import TrainState
from l2rm_jax.methods.closed_form import FITTED_HEAD
from l2rm_jax.models import WORDS
from l2rm_jax.models.pretrained import TextTransformer
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.judgement import uses_crossfit


def check_pretrained_fields(config: ConfigDict) -> None:
    """Check the fields of pretrained weights against each other, without reading a file.

    Raises:
      ConfigError: one message for each field that does not fit.
    """
    model, wrong = config.model, []
    if model.text_encoder == WORDS and model.pretrained:
        wrong.append(
            f"model.text_encoder: {WORDS!r}, expected bert, clip or siglip, as model.pretrained is "
            f"{model.pretrained!r}"
        )
    if model.adapter_rank and model.text_encoder == WORDS:
        wrong.append(
            f"model.adapter_rank: {model.adapter_rank}, expected 0 without a pretrained encoder"
        )
    if config.optim.base_epochs and model.text_encoder == WORDS:
        wrong.append(
            f"optim.base_epochs: {config.optim.base_epochs}, expected 0 without a pretrained "
            "encoder"
        )
    if model.text_encoder != WORDS:
        if not model.pretrained:
            wrong.append(
                f"model.pretrained: empty, expected the directory of the weights for "
                f"model.text_encoder={model.text_encoder}"
            )
        if model.adapter_rank and config.optim.text_rate == 0:
            wrong.append(
                f"model.adapter_rank: {model.adapter_rank}, expected 0 with optim.text_rate=0, "
                "which freezes the whole encoder"
            )
        if model.head == FITTED_HEAD and model.text_states != "vector":
            wrong.append(
                f"model.text_states: {model.text_states!r}, expected 'vector' with model.head="
                f"{FITTED_HEAD} and a pretrained encoder"
            )
    if wrong:
        raise ConfigError(*wrong)


def find_pretrained(config: ConfigDict, workdir: str | Path | None) -> Pretrained | None:
    """Open the pretrained weights of a run; None if it has none.

    A run that has started has a copy of its own, and never needs `model.pretrained` again.

    Args:
      config: config of the run.
      workdir: its work directory; None for one that has not started.

    Raises:
      ConfigError, DataError: as `open_pretrained`.
    """
    if config.model.text_encoder == WORDS or not config.model.pretrained:
        return None
    own = None if workdir is None else Path(workdir) / PRETRAINED
    directory = own if own and (own / SOURCE_FILE).exists() else config.model.pretrained
    return open_pretrained(directory, config.model.text_encoder, max_words=config.data.max_words)


def with_own_weights(config: ConfigDict, workdir: str | Path) -> ConfigDict:
    """The config of a run, to start other runs like it from the run's copy of the weights."""
    own = Path(workdir) / PRETRAINED
    if not config.model.pretrained or not (own / SOURCE_FILE).exists():
        return config
    return with_changes(config, {"model.pretrained": str(own)})


def has_changed(pretrained: Pretrained | None, original: str | Path) -> bool:
    """Whether the original directory is still there and holds other weights than the run's copy."""
    if pretrained is None or not Path(original).is_dir() or pretrained.directory == Path(original):
        return False
    try:
        return Pretrained(Path(original), pretrained.bases, None).hashes() != pretrained.hashes()
    except (DataError, OSError):  # nothing there that could be compared
        return True


def with_judged_captions(config: ConfigDict, data: Data) -> Data:
    """Add vectors of the training captions by the pretrained encoder, where something needs them.

    Cross-fitting judges pairs, and the head `linear` is fitted, by the vectors of the encoder as it
    was pretrained: those of a trained one would know the pairs. They are rounded to float16.

    Args:
      config: config of the run.
      data: its data.
    """
    needed = uses_crossfit(config) or config.model.head == FITTED_HEAD
    if data.pretrained is None or not needed:
        return data
    with matmul_precision(config.precision):
        vectors = _vectors(data.pretrained, data.train, config.evaluation.batch_size)
    judged = RegionFeatures.from_array(vectors[:, None], "vectors of the training captions")
    return replace(data, train=replace(data.train, judged_captions=judged))


def _vectors(
    pretrained: Pretrained, pairs: PairDataset, batch_size: int
) -> Float16[np.ndarray, "captions D"]:
    """The vector of each caption, by the weights of the directory."""
    base = pretrained.bases.text
    params = jax.device_put(pretrained.parameters()["text_base"])
    model = TextTransformer(base, vector=True)
    encode = jax.jit(lambda params, *inputs: model.apply({"params": params}, *inputs, False)[0])
    vectors = np.empty((len(pairs), base.projection or base.stack.width), np.float16)
    with progress_bar(len(pairs), f"vectors of {pairs.split}") as bar:
        for tokens, lengths, rows, count in caption_batches(pairs.tokens, batch_size):
            vectors[rows[:count]] = encode(params, tokens, lengths)[:count, 0]
            bar.update(count)
    return vectors


def with_pretrained(state: TrainState, parameters: dict[str, Any]) -> TrainState:
    """The state with pretrained arrays in place of random ones; each network gets the same.

    Args:
      state: a state before the first step.
      parameters: arrays of each base, by its group. Adapters are not among them.
    """

    params, given = flatten_dict(state.params), flatten_dict(parameters)
    arrays = {
        path: jnp.broadcast_to(jnp.asarray(array, params[path].dtype), params[path].shape)
        for path, array in given.items()
    }
    return state.replace(params=unflatten_dict({**params, **arrays}))
