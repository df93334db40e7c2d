"""Flags that make training and scoring need less memory of a device."""

from typing import Any


def training_hints(config: Any, is_product: bool) -> list[str]:
    """Flags for a training step, the best one first; none for a field that is at its smallest.

    Args:
      config: config of the run.
      is_product: whether the model's similarity is a product of two vectors; `model.chunk` has then
        no effect.
    """
    batch, width = config.train.batch_size, config.model.embed_dim
    smaller = [f"--config.train.batch_size={max(2, batch // 2)}"] if batch > 2 else []
    narrower = [f"--config.model.embed_dim={width // 2}"] if width > 1 else []
    return smaller + _chunk_hint(config, is_product) + narrower


def scoring_hints(config: Any, is_product: bool) -> list[str]:
    """Flags for scoring a split, as in `training_hints`; they do not change the scores."""
    batch = config.evaluation.batch_size
    smaller = [f"--config.evaluation.batch_size={batch // 2}"] if batch > 1 else []
    return smaller + _chunk_hint(config, is_product)


def _chunk_hint(config: Any, is_product: bool) -> list[str]:
    chunk = config.model.chunk
    return [] if is_product or chunk == 1 else [f"--config.model.chunk={max(1, chunk // 2)}"]
