"""The head `linear` fitted to the training pairs in closed form (see `linear/cca.py`).

The method `cca` is only this fit. All other methods start this head from a fit with a larger ridge
than is best for `cca`: with a smaller ridge the model already fits the training pairs so closely
that gradient steps on the same pairs no longer improve it.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from l2rm_jax.config import NEEDED_HEADS
from l2rm_jax.data import TrainPairs
from l2rm_jax.data.vectors import Fitted, caption_vectors, image_vectors
from l2rm_jax.linear import cca
from l2rm_jax.linear.cca import Ridge
from l2rm_jax.methods.base import TrainState

FITTED_HEAD = NEEDED_HEADS["cca"]
RIDGES = (Ridge(0.1, 0.1), Ridge(0.3, 0.3), Ridge(1, 1), Ridge(3, 1), Ridge(10, 3), Ridge(30, 10))
START = RIDGES.index(Ridge(3, 1))  # the fit from which other methods start


def fit_states(
    state: TrainState, dataset: TrainPairs, weighted: bool
) -> list[tuple[TrainState, dict[str, float]]]:
    """Fit the head `linear` to the training pairs, once for each of `RIDGES`.

    Args:
      state: state of a model with this head.
      dataset: the training pairs; rematched ones, if there are any, are added by their weights.
      weighted: whether to weigh the pairs by the probability that they are matched.

    Returns:
      For each ridge, the state with the fitted model, and the ridge as a report.
    """
    images, captions = image_vectors(dataset.to_judge), caption_vectors(dataset.to_judge)
    image_rows, caption_rows, weights = _weighted_pairs(dataset, weighted)
    total = cca.moments(images.rows, captions.rows, image_rows, caption_rows, weights[None])[0]
    mean = total[0, 1:] / total[0, 0]
    covariance = total[1:, 1:] / total[0, 0] - np.outer(mean, mean)
    split = images.rows.shape[1]
    image_part, caption_part = slice(None, split), slice(split, None)
    statistics = {
        "image_encoder": _statistics(images, mean[image_part], covariance[image_part, image_part]),
        "text_encoder": _statistics(
            captions, mean[caption_part], covariance[caption_part, caption_part]
        ),
    }
    state = state.replace(batch_stats=_resized(statistics, state.batch_stats))
    fitted = []
    for ridge in RIDGES:
        model = cca.fit(total, split, ridge)
        params = {
            "image_encoder": _map(model.image_map, covariance[image_part, image_part]),
            "text_encoder": _map(model.caption_map, covariance[caption_part, caption_part]),
        }
        report = {"ridge_images": ridge.images, "ridge_captions": ridge.captions}
        like = {name: state.params[name] for name in params}  # a method may have others
        params = {**state.params, **_resized(params, like)}
        fitted.append((state.replace(params=params), report))
    return fitted


def _weighted_pairs(dataset: TrainPairs, weighted: bool) -> tuple[np.ndarray, ...]:
    """Image row, caption row and weight of each pair to fit to."""
    pairs = np.flatnonzero(dataset.paired)
    weights = (1 - dataset.posterior if weighted else np.ones(len(dataset)))[pairs]
    own = dataset.stored_image[pairs], pairs, weights
    if dataset.rematched is None:
        return own
    return tuple(map(np.concatenate, zip(own, dataset.rematched, strict=True)))


def _scale(covariance: Float[np.ndarray, "d d"]) -> np.float32:
    """Factor that scales the mean variance of the features to 1."""
    return np.float32(1 / np.sqrt(max(np.trace(covariance) / len(covariance), 1e-12)))


def _map(
    matrix: Float[np.ndarray, "d components"], covariance: Float[np.ndarray, "d d"]
) -> dict[str, np.ndarray]:
    """Map of the scaled features, normalised so that the mean squared length of its outputs is 1.

    A gradient step then changes the same share of the map for all kinds of features. Cosines do not
    change.
    """
    length = np.sqrt(np.sum(matrix * (covariance @ matrix)))
    return {"map": matrix / (_scale(covariance) * max(length, 1e-12))}


def _statistics(
    vectors: Fitted, mean: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"]
) -> dict[str, np.ndarray]:
    """Arrays that compute and standardise the features, by their names in the head's encoders."""
    fields = vectors.fit._asdict() if vectors.fit else {}
    fields |= {"center": mean, "scale": _scale(covariance)}
    return {f"feature_{name}": np.asarray(value) for name, value in fields.items()}


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
