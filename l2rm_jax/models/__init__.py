"""Encoders and similarity heads (Flax Linen).

`retrieval` holds the model of a run: an image encoder, a text encoder and a similarity head. Each
head has its own file, which declares the head's requirements and registers it; `head` holds their
base class. `pretrained/` has the transformers that can run in front of the encoders. To choose
or add a head, read `README.md` in this folder. May import `linear`, `losses`, `ot`, `mixture`,
`devices`, `config`, `pretrained` and `errors`.
"""

import dataclasses
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from l2rm_jax.errors import ConfigError, Problems, check_names

# Each of these files registers its head on import.
from l2rm_jax.models import (  # noqa: F401
    aggregate,
    cam,
    centred,
    chan,
    de,
    imram,
    linear,
    naaf,
    naaf_threshold,
    omit,
    pem,
    saf,
    sgr,
    vse,
)
from l2rm_jax.models.head import HEADS, SECTIONS, SimilarityHead, register_head
from l2rm_jax.models.retrieval import RetrievalModel
from l2rm_jax.pretrained.specs import KINDS, Bases, ImageBase, TextBase, with_dropout

WORDS = "gru"  # `model.text_encoder` without a pretrained model
REGIONS = "regions"  # `model.image_encoder` likewise
STATES = ("all", "vector")


def make_model(
    config: Any,
    vocabulary_size: int,
    axis_name: str | None = None,
    bases: Bases | None = None,
) -> RetrievalModel:
    """Make the retrieval model of a config.

    Args:
      config: a whole config; without bases, the sections `SECTIONS` are enough.
      vocabulary_size: number of words in the vocabulary; 0 where captions are given as vectors.
      axis_name: mapped axis of the devices, or None.
      bases: pretrained transformers in front of the encoders; None without any.

    Raises:
      ConfigError: a field of `model`, `cam` or `naaf` holds a name that is unknown or that the head
        does not support; `model.word_noise` is set where captions are vectors; or
        `model.region_mask` is set with a head that needs all regions in training.
    """
    problems = Problems()
    problems.attempt(check_names, "model", config.model, {"head": HEADS})
    problems.attempt(check_names, "model", config.model, _choices(config))
    known = {"text_encoder": (WORDS, *KINDS), "image_encoder": (REGIONS, "clip", "siglip")}
    known |= {"text_states": STATES, "image_states": STATES}
    problems.attempt(check_names, "model", config.model, known)
    problems.attempt(check_names, "cam", config.cam, {"direction": cam.DIRECTIONS})
    thresholds = {"threshold": naaf_threshold.THRESHOLDS}
    problems.attempt(check_names, "naaf", config.naaf, thresholds)
    problems.attempt(check_word_noise, config.model, in_words=vocabulary_size > 0, bases=bases)
    problems.attempt(_check_region_mask, config)
    problems.attempt(_check_no_projection, config, bases or Bases())
    problems.raise_all()
    sections = FrozenConfigDict({name: config[name] for name in SECTIONS})
    bases = None if bases is None else _run_bases(config, bases)
    return RetrievalModel(sections, vocabulary_size, axis_name, bases=bases)


def _run_bases(config: Any, bases: Bases) -> Bases:
    """Set dropout, adapters and crops of the bases from the config."""
    text, image, optim = bases.text, bases.image, config.optim
    if text is not None:
        text = _run_base(config, text, is_frozen=optim.text_rate == 0)
    if image is not None:
        image = _run_base(config, image, is_frozen=optim.image_rate == 0)
        image = dataclasses.replace(image, smallest_crop=config.data.pixel_crop)
    return Bases(text, image)


def _run_base(config: Any, base: TextBase | ImageBase, is_frozen: bool) -> TextBase | ImageBase:
    """Set dropout and adapters of the base from the config; no dropout if it is frozen."""
    if is_frozen:
        return with_dropout(base, 0.0)
    rate = config.model.base_dropout
    base = base if rate < 0 else with_dropout(base, rate)
    stack = dataclasses.replace(base.stack, adapter_rank=config.model.adapter_rank)
    return dataclasses.replace(base, stack=stack)


def _choices(config: Any) -> dict[str, tuple[str, ...]]:
    """List the allowed names of each field of `model`.

    If the config's head declares a field, the field may have the names that this head declares.
    Any other field may have the names of any head of this package, except plug-ins: they may need
    settings that this config lacks.
    """
    choices: dict[str, tuple[str, ...]] = {}
    for make in HEADS.values():
        if make.__module__.startswith(__name__):
            for field, names in make(config).choices.items():
                choices[field] = tuple(dict.fromkeys((*choices.get(field, ()), *names)))
    own = HEADS.get(config.model.head)
    return {**choices, **(own(config).choices if own else {})}


def check_word_noise(config: ConfigDict, in_words: bool, bases: Bases | None = None) -> None:
    """Raise `ConfigError` for word noise where captions are vectors, or have no mask token.

    Args:
      config: the config's section `model`.
      in_words: whether captions are read as words or pieces.
      bases: pretrained transformers of the run; None without any.
    """
    noise, base = config.word_noise, None if bases is None else bases.text
    if noise and not in_words:
        raise ConfigError(
            f"model.word_noise: found {noise}, expected 0, because the captions are vectors"
        )
    if noise and base is not None and base.ids is None:
        raise ConfigError(
            f"model.word_noise: found {noise}, expected 0 with model.text_encoder={base.kind}, "
            "whose tokenizer has no mask token"
        )


def _check_no_projection(config: Any, bases: Bases) -> None:
    """Check `model.embed_dim=0`, which uses the states of the bases without a projection."""
    model = config.model
    if model.embed_dim:
        return
    if model.text_encoder == WORDS or model.image_encoder == REGIONS:
        raise ConfigError(
            "model.embed_dim: found 0, expected at least 1, because 0 requires pretrained encoders "
            "of both captions and images"
        )
    make = HEADS.get(model.head)
    head = None if make is None else make(config)
    if head and type(head).make_encoders.__func__ is not SimilarityHead.make_encoders.__func__:
        raise ConfigError(
            f"model.embed_dim: found 0, expected at least 1 with model.head={model.head}, which "
            "has its own encoders"
        )
    if bases.text and bases.image and bases.text.width != bases.image.width:
        raise ConfigError(
            f"model.embed_dim: found 0, expected at least 1, because caption states have "
            f"{bases.text.width} dimensions and image states {bases.image.width}"
        )


def _check_region_mask(config: Any) -> None:
    name, share = config.model.head, config.model.region_mask
    head = HEADS[name](config) if name in HEADS else None
    if share and head and (head.needs_all_regions or head.needs_global_vectors):
        # Kept regions move to the first positions. So the means of quadrants would be wrong, and
        # the encoder of global vectors would never train its last channels: its batch normalisation
        # has one per position.
        raise ConfigError(
            f"model.region_mask: found {share}, expected 0 with model.head={name}, which needs all "
            "regions in training and in order; use model.dropout or another head"
        )


__all__ = [
    "HEADS",
    "RetrievalModel",
    "SimilarityHead",
    "check_word_noise",
    "make_model",
    "register_head",
]
