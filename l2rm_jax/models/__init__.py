"""Encoders and similarity heads (Flax Linen)."""

from ml_collections import ConfigDict

from l2rm_jax.errors import ConfigError
from l2rm_jax.models.retrieval import HEADS, RetrievalModel


def make_model(
    config: ConfigDict, vocabulary_size: int, axis_name: str | None = None
) -> RetrievalModel:
    """The model that the `model` part of a config describes.

    Raises:
      ConfigError: there is no such head.
    """
    if config.head not in HEADS:
        raise ConfigError(f"model.head: {config.head!r} is none of {', '.join(HEADS)}")
    return RetrievalModel(vocabulary_size=vocabulary_size, axis_name=axis_name, **config)


__all__ = ["RetrievalModel", "make_model"]
