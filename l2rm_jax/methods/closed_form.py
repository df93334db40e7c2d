"""The head `linear` fitted to the training pairs in closed form (see `crossfit/cca.py`).

The method `cca` is this fit alone. Any other method with this head starts from it.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from l2rm_jax.crossfit import caption_vectors, cca, image_vectors
from l2rm_jax.crossfit.cca import Ridge
from l2rm_jax.crossfit.features import Fitted
from l2rm_jax.data import PairDataset
from l2rm_jax.methods.base import TrainState

FITTED_HEAD = "linear"
RIDGES = (Ridge(0.1, 0.1), Ridge(0.3, 0.3), Ridge(1, 1), Ridge(3, 1), Ridge(10, 3), Ridge(30, 10))


def fit_states(
    state: TrainState, dataset: PairDataset, weighted: bool
) -> list[tuple[TrainState, dict[str, float]]]:
    """Fit the head `linear` to the training pairs, once for each of `RIDGES`.

    Args:
      state: state of a model with this head.
      dataset: the training pairs; rematched ones, if there are any, are added by their weights.
      weighted: whether to weigh the pairs by their posterior.

    Returns:
      For each ridge, the state with the fitted model, and the ridge as a report.
    """
    images, captions = image_vectors(dataset), caption_vectors(dataset)
    image_rows, caption_rows, weights = _weighted_pairs(dataset, weighted)
    total = cca.moments(images.rows, captions.rows, image_rows, caption_rows, weights[None])[0]
    split = 1 + images.rows.shape[1]
    fitted = []
    for ridge in RIDGES:
        model = cca.fit(total, images.rows.shape[1], ridge)
        sides = {
            "image_encoder": (images, model.image_mean, model.image_map, slice(1, split)),
            "text_encoder": (captions, model.caption_mean, model.caption_map, slice(split, None)),
        }
        params, statistics = {}, {}
        for name, (features, mean, matrix, part) in sides.items():
            covariance = total[part, part] / total[0, 0] - np.outer(mean, mean)
            scale, matrix = _standardise(covariance, matrix)
            params[name] = {"map": matrix}
            statistics[name] = _statistics(features) | {"center": mean, "scale": scale}
            statistics[name] = {f"feature_{key}": x for key, x in statistics[name].items()}
        new = state.replace(
            params=_resized(params, state.params),
            batch_stats=_resized(statistics, state.batch_stats),
        )
        fitted.append((new, {"ridge_images": ridge.images, "ridge_captions": ridge.captions}))
    return fitted


def _weighted_pairs(dataset: PairDataset, weighted: bool) -> tuple[np.ndarray, ...]:
    """Image row, caption row and weight of each pair to fit to."""
    pairs = np.flatnonzero(dataset.paired)
    weights = (dataset.posterior if weighted else np.ones(len(dataset)))[pairs]
    own = dataset.stored_image[pairs], pairs, weights
    if dataset.rematched is None:
        return own
    return tuple(map(np.concatenate, zip(own, dataset.rematched, strict=True)))


def _standardise(
    covariance: Float[np.ndarray, "d d"], matrix: Float[np.ndarray, "d components"]
) -> tuple[np.ndarray, np.ndarray]:
    """A scale that makes the mean variance of the features 1, and the map of what is scaled.

    The mean squared length of the mapped vectors is 1 too. So a step of gradient changes the same
    share of a map whatever the features are. No cosine changes.
    """
    scale = 1 / np.sqrt(max(np.trace(covariance) / len(covariance), 1e-12))
    length = np.sqrt(np.sum(matrix * (covariance @ matrix)))
    return np.float32(scale), matrix / (scale * max(length, 1e-12))


def _statistics(vectors: Fitted) -> dict[str, np.ndarray]:
    """What was fitted to the features, by name; empty for single vectors."""
    return {name: np.asarray(x) for name, x in vectors.fit._asdict().items()} if vectors.fit else {}


def _resized(fitted: Any, like: Any) -> Any:
    """Pad arrays with zeros at their ends to the shapes that the model has.

    Words that only other splits have, numbers of quadrants where the regions are no grid, and
    components that small vectors lack are zeros, and change no vector.
    """

    def pad(array: np.ndarray, target: jax.Array) -> np.ndarray:
        padded = np.zeros(target.shape, np.float32)
        padded[tuple(map(slice, np.shape(array)))] = array
        return padded

    return jax.tree.map(pad, fitted, like)
