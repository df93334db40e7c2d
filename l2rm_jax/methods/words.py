"""Start the word embeddings of a model from given vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from l2rm_jax.errors import ConfigError

EMBEDDING = "embedding"


def with_word_vectors(params: Any, vectors: Float[np.ndarray, "V W"]) -> Any:
    """Replace the embedding of each word that has a given vector.

    Args:
      params: parameters of a model, with a leading axis if there are several networks.
      vectors: a row for each word; NaN for a word that keeps its random start.

    Raises:
      ConfigError: the model has no word embeddings, or they have another size.
    """
    found = 0

    def replace(path: tuple, leaf: jax.Array) -> jax.Array:
        nonlocal found
        if path[-1].key != EMBEDDING or path[-2].key not in ("words", "text_encoder"):
            return leaf
        found += 1
        if leaf.shape[-1] != vectors.shape[1]:
            raise ConfigError(
                f"model.word_dim: found {leaf.shape[-1]}, expected {vectors.shape[1]}, the size of "
                "the vectors in data.word_vectors"
            )
        given = jnp.broadcast_to(vectors, leaf.shape)
        return jnp.where(jnp.isnan(given), leaf, given)

    params = jax.tree.map_with_path(replace, params)
    if not found:
        raise ConfigError(
            "data.word_vectors requires a model with word embeddings (model.text_encoder=gru)"
        )
    return params
