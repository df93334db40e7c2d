"""Encoders and similarity heads (Flax Linen)."""

from ml_collections import ConfigDict

from l2rm_jax.errors import ConfigError, Problems, check_names
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
    problems = Problems()
    problems.attempt(check_names, "model", config, known)
    problems.attempt(check_word_noise, config, in_words=vocabulary_size > 0)
    problems.attempt(_check_region_mask, config)
    problems.raise_all()
    return RetrievalModel(vocabulary_size=vocabulary_size, axis_name=axis_name, **config)


def check_word_noise(config: ConfigDict, in_words: bool) -> None:
    """Raises `ConfigError` for noise of words where captions are vectors."""
    if config.word_noise and not in_words:
        raise ConfigError(
            f"model.word_noise: {config.word_noise}, expected 0: captions are given as vectors"
        )


def _check_region_mask(config: ConfigDict) -> None:
    if config.region_mask and config.head in GLOBAL:
        # Their image encoder has a channel of batch normalisation for each place of a region, and
        # the regions that a step keeps fill the first places: the last would never be trained.
        raise ConfigError(
            f"model.region_mask: {config.region_mask}, expected 0 with model.head={config.head}, "
            "whose normalisation of regions goes by their place and needs all of them in training; "
            "use model.dropout or another head"
        )


__all__ = ["RetrievalModel", "check_word_noise", "make_model"]
