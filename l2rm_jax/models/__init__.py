"""Encoders and similarity heads (Flax Linen)."""

from ml_collections import ConfigDict

from l2rm_jax.errors import ConfigError
from l2rm_jax.models import cam, omit, vse
from l2rm_jax.models.retrieval import GLOBAL, HEADS, RetrievalModel


def make_model(
    config: ConfigDict, vocabulary_size: int, axis_name: str | None = None
) -> RetrievalModel:
    """The model that the `model` part of a config describes.

    Raises:
      ConfigError: a field names something that does not exist or that the head does not have.
    """
    known = {"head": HEADS, "pooling": vse.POOLINGS, "margins": omit.MARGINS}
    known["matching"] = cam.MATCHINGS if config.head == "cam" else omit.MATCHINGS
    for field, names in known.items():
        if config[field] not in names:
            raise ConfigError(f"model.{field}: {config[field]!r} is none of {', '.join(names)}")
    if config.word_noise and not vocabulary_size:
        raise ConfigError(
            f"model.word_noise: {config.word_noise}, expected 0: captions are given as vectors"
        )
    if config.region_mask and config.head in GLOBAL:
        # Their image encoder has a channel of batch normalisation for each place of a region, and
        # the regions that a step keeps fill the first places: the last would never be trained.
        raise ConfigError(
            f"model.region_mask: {config.region_mask}, expected 0 with model.head={config.head}, "
            "whose normalisation of regions goes by their place and needs all of them in training; "
            "use model.dropout or another head"
        )
    return RetrievalModel(vocabulary_size=vocabulary_size, axis_name=axis_name, **config)


__all__ = ["RetrievalModel", "make_model"]
