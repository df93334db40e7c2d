"""Find and check the pretrained weights of a run, and put them into its first state."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Float
from ml_collections import ConfigDict

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.devices.hosts import is_primary, wait_for_file
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError, DataError, Problems
from l2rm_jax.methods.base import TrainState
from l2rm_jax.methods.closed_form import FITTED_HEAD
from l2rm_jax.methods.learned_scale import GROUP
from l2rm_jax.models import REGIONS, WORDS
from l2rm_jax.pretrained.directory import SOURCE_FILE, Encoders, Pretrained, open_pretrained
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.frozen_encoder import judged_vectors, with_vectors
from l2rm_jax.run.judgement import uses_judgement

# Directories of a run's copies of its pretrained weights; the second holds a separate image model.
PRETRAINED, PRETRAINED_IMAGES = "pretrained", "pretrained_images"
VECTORS_FILE = "pretrained_vectors.npz"


class EncoderSide(NamedTuple):
    """A side of the model that may have a pretrained encoder, by the fields of the config.

    Attributes:
      encoder: field of `model` that names the encoder, and its value without a pretrained one.
      states: field of `model` with the states that the encoder gives.
      rate: field of `optim`.
    """

    encoder: str
    without: str
    states: str
    rate: str

    def is_used(self, config: ConfigDict) -> bool:
        """Whether the run has a pretrained encoder on this side."""
        return config.model[self.encoder] != self.without


CAPTIONS = EncoderSide("text_encoder", WORDS, "text_states", "text_rate")
IMAGES = EncoderSide("image_encoder", REGIONS, "image_states", "image_rate")


def check_pretrained_fields(config: ConfigDict) -> None:
    """Check the fields of pretrained weights against each other, without reading a file.

    Raises:
      ConfigError: one message for each field that does not fit.
    """
    model, optim = config.model, config.optim
    used = [side for side in (CAPTIONS, IMAGES) if side.is_used(config)]
    wrong = [*_wrong_directories(config)]
    if not used:
        needless = {
            "model.adapter_rank": model.adapter_rank,
            "optim.base_epochs": optim.base_epochs,
        }
        wrong += [
            f"{name}: found {value}, expected 0 without a pretrained encoder"
            for name, value in needless.items()
            if value
        ]
    elif not any(optim[side.rate] for side in used):
        rates = " and ".join(f"optim.{side.rate}=0" for side in used)
        if model.adapter_rank:
            wrong.append(
                f"model.adapter_rank: found {model.adapter_rank}, expected 0 with {rates}, which "
                "freezes all that could be adapted"
            )
        if not model.embed_dim:
            wrong.append(
                f"model.embed_dim: found 0, expected at least 1 with {rates}, as nothing would be "
                "trained"
            )
    if model.head == FITTED_HEAD:
        wrong += [
            f"model.{side.states}: found {model[side.states]!r}, expected 'vector' with model.head="
            f"{FITTED_HEAD} and a pretrained encoder"
            for side in used
            if model[side.states] != "vector"
        ]
    if config.data.pixel_crop and not IMAGES.is_used(config):
        wrong.append(
            f"data.pixel_crop: found {config.data.pixel_crop}, expected 0 without a pretrained "
            "image encoder, as features cannot be cropped"
        )
    if wrong:
        raise ConfigError(*wrong)


def _wrong_directories(config: ConfigDict) -> list[str]:
    """Error messages about the fields that name directories."""
    model, wrong = config.model, []
    if model.pretrained and not (CAPTIONS.is_used(config) or IMAGES.is_used(config)):
        wrong.append(
            f"model.text_encoder: found {WORDS!r}, expected bert, clip or siglip, as "
            f"model.pretrained is {model.pretrained!r}"
        )
    if model.pretrained_images and not IMAGES.is_used(config):
        wrong.append(
            f"model.image_encoder: found {REGIONS!r}, expected clip or siglip, as "
            f"model.pretrained_images is {model.pretrained_images!r}"
        )
    if "" in {use.directory for use in directories(config).values()}:
        field = next(side.encoder for side in (CAPTIONS, IMAGES) if side.is_used(config))
        wrong.append(
            f"model.pretrained: empty, expected the directory of the weights for "
            f"model.{field}={model[field]}"
        )
    return wrong


class Use(NamedTuple):
    """A directory of weights; the `model_type` of each side that a run uses of it, or None."""

    directory: str
    text_encoder: str | None
    image_encoder: str | None


def directories(config: ConfigDict) -> dict[str, Use]:
    """The directories that a run uses, by the name of its copy in the work directory."""
    model = config.model
    text, image = (
        model[side.encoder] if side.is_used(config) else None for side in (CAPTIONS, IMAGES)
    )
    own, shared = (image, None) if model.pretrained_images else (None, image)
    uses = {
        PRETRAINED: Use(model.pretrained, text, shared),
        PRETRAINED_IMAGES: Use(model.pretrained_images, None, own),
    }
    return {name: use for name, use in uses.items() if use.text_encoder or use.image_encoder}


def find_pretrained(config: ConfigDict, workdir: str | Path | None) -> Encoders | None:
    """Open the pretrained encoders of a run; None if it has none.

    A run that has started has copies of its own, and never needs the directories again.

    Raises:
      ConfigError, DataError: as `open_pretrained`; lists the faults of all directories.
    """
    uses = directories(config if workdir is None else with_own_weights(config, workdir))
    if any(not use.directory for use in uses.values()):  # `check_pretrained_fields` says so
        return None
    return _open(uses, config)


def open_own(config: ConfigDict, workdir: str | Path) -> Encoders | None:
    """Open a trained run's own copies, whose weight files are not needed; None if it has none.

    Raises:
      DataError: a copy is missing or damaged.
    """
    uses = {
        name: use._replace(directory=str(Path(workdir) / name))
        for name, use in directories(config).items()
    }
    return _open(uses, config, with_weights=False)


def _open(
    uses: Mapping[str, Use], config: ConfigDict, with_weights: bool = True
) -> Encoders | None:
    problems = Problems()
    settings = {"max_words": config.data.max_words, "with_weights": with_weights}
    opened = {
        name: problems.attempt(
            open_pretrained,
            use.directory,
            text_encoder=use.text_encoder,
            image_encoder=use.image_encoder,
            **settings,
        )
        for name, use in uses.items()
    }
    problems.raise_all()
    return Encoders(opened) if opened else None


def with_own_weights(config: ConfigDict, workdir: str | Path) -> ConfigDict:
    """The config of a run, to start other runs like it from the run's copies of the weights."""
    own = {
        f"model.{name}": str(Path(workdir) / name)
        for name in directories(config)
        if (Path(workdir) / name / SOURCE_FILE).exists()
    }
    return with_changes(config, own)


def changed_directories(encoders: Encoders | None, config: ConfigDict) -> list[str]:
    """Find original directories that now hold other weights than the run's copies."""
    if encoders is None:
        return []
    return [
        use.directory
        for name, use in directories(config).items()
        if _has_changed(encoders.directories[name], Path(use.directory))
    ]


def _has_changed(pretrained: Pretrained, original: Path) -> bool:
    if not original.is_dir() or pretrained.directory == original:
        return False
    try:
        return Pretrained(original, pretrained.bases, None).hashes() != pretrained.hashes()
    except (DataError, OSError):  # nothing there that could be compared
        return True


def with_judged_vectors(config: ConfigDict, data: Data, workdir: str | Path) -> Data:
    """Add vectors of the training pairs by the pretrained encoders, where something needs them.

    Pairs are judged, and the head `linear` is fitted, by the vectors of the encoders as they were
    pretrained: trained encoders would know the pairs. They are made once, by host 0,
    and kept in the work directory.

    Raises:
      DataError: the kept vectors are damaged, or of other captions, images or weights.
    """
    needed = uses_judgement(config) or config.model.head == FITTED_HEAD
    if data.pretrained is None or not needed:
        return data
    path = Path(workdir) / VECTORS_FILE
    made_of = np.array(_digest(data.pretrained, data.train))
    if is_primary() and not path.exists():
        with matmul_precision(config.precision):
            made = judged_vectors(data.pretrained, data.train, config.evaluation.batch_size)
        replace_arrays(path, {**made, "made_of": made_of})
    wait_for_file(path)
    with open_arrays(path, "vectors of the training pairs", "remove it to make them again") as file:
        judged = dict(file)
    if judged.pop("made_of", None) != made_of:
        raise DataError(f"{path}: made of other captions, images or weights; remove it")
    return replace(data, train=with_vectors(data.train, judged))


def _digest(encoders: Encoders, pairs: TrainPairs) -> str:
    """Hash of the weights, of the captions in pieces, and of the number and size of the images."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([encoders.hashes(), *map(int, pairs.images.shape)]).encode())
    if isinstance(pairs.tokens, list):
        digest.update(np.concatenate([[len(ids), *ids] for ids in pairs.tokens]).tobytes())
    return digest.hexdigest()


def pretrained_arrays(encoders: Encoders, config: ConfigDict, params: Any) -> dict[str, Any]:
    """The pretrained arrays with which a run begins, by their group of parameters.

    A run that begins at the cosines of a CLIP or SigLIP and learns their scale begins with that of
    the model.
    """
    arrays = encoders.parameters()
    if GROUP in params and not config.model.embed_dim:
        arrays[GROUP] = {name: x for name, x in encoders.scale().items() if name in params[GROUP]}
    return arrays


def with_pretrained(state: TrainState, parameters: dict[str, Any]) -> TrainState:
    """Replace random arrays of a state by pretrained ones, the same for each network.

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


def with_word_vectors(params: Any, vectors: Float[np.ndarray, "V W"]) -> Any:
    """Replace the embedding of each word that has a given vector.

    Args:
      params: parameters of a model, with a leading axis if there are several networks.
      vectors: a row for each word; NaN for a word that keeps its random start.

    Raises:
      ConfigError: the model has no word embeddings, or they have another size.
    """
    found = 0

    def place(path: tuple, leaf: jax.Array) -> jax.Array:
        nonlocal found
        if path[-1].key != "embedding" or path[-2].key not in ("words", "text_encoder"):
            return leaf
        found += 1
        if leaf.shape[-1] != vectors.shape[1]:
            raise ConfigError(
                f"model.word_dim: found {leaf.shape[-1]}, expected {vectors.shape[1]}, the size of "
                "the vectors in data.word_vectors"
            )
        given = jnp.broadcast_to(vectors, leaf.shape)
        return jnp.where(jnp.isnan(given), leaf, given)

    params = jax.tree.map_with_path(place, params)
    if not found:
        raise ConfigError(
            "data.word_vectors requires a model with word embeddings (model.text_encoder=gru)"
        )
    return params
