"""CCA as a method: the linear head fitted to the training pairs in closed form, in seconds.

It needs no gradient. Each epoch of the run is one ridge (what is added to the variances), and
validation keeps the best. With `train.draw=posterior`, pairs are weighted by their posterior
of being matched (`crossfit.fit_weighted`), in place of being drawn in proportion to it. On
semi-paired data it trusts the known pairs alone.

References: as `crossfit/cca.py`.
"""

from functools import partial
from typing import Any

import jax
import numpy as np

from l2rm_jax.config import NEEDED_HEADS
from l2rm_jax.crossfit import caption_vectors, cca, image_vectors
from l2rm_jax.crossfit.cca import Ridge
from l2rm_jax.crossfit.features import Fitted
from l2rm_jax.data import PairDataset
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.base import Method, TrainState, init_state, model_optimiser
from l2rm_jax.methods.registry import register_method

RIDGES = (Ridge(0.1, 0.1), Ridge(0.3, 0.3), Ridge(1, 1), Ridge(3, 1), Ridge(10, 3), Ridge(30, 10))


def make_cca(model, config) -> Method:
    """Make the method.

    Raises:
      ConfigError: the head is not `linear`.
    """
    head = NEEDED_HEADS["cca"]
    if config.model.head != head:
        raise ConfigError(
            f"model.head: {config.model.head!r}, expected {head!r} with method=cca",
            hint=f"--config.model.head={head}",
        )
    return Method(
        init=lambda key, batch: init_state(model, model_optimiser(config), key, batch),
        fit=partial(_fit, weighted=config.train.draw == "posterior"),
        epochs=len(RIDGES),
    )


register_method("cca", make_cca)


def _fit(
    state: TrainState, dataset: PairDataset, weighted: bool
) -> list[tuple[TrainState, dict[str, float]]]:
    """States of the fitted models, one for each of `RIDGES`, with their ridge as a report."""
    images, captions = image_vectors(dataset), caption_vectors(dataset)
    statistics = {"image_encoder": _statistics(images), "text_encoder": _statistics(captions)}
    batch_stats = _resized({k: v for k, v in statistics.items() if v}, state.batch_stats)
    pairs = np.flatnonzero(dataset.paired)
    weights = (dataset.posterior if weighted else np.ones(len(dataset)))[pairs]
    vectors = images.rows, captions.rows
    total = cca.moments(*vectors, dataset.stored_image, pairs, weights[None])[0]
    fitted = []
    for ridge in RIDGES:
        model = cca.fit(total, images.rows.shape[1], ridge)
        params = {
            "image_encoder": {"mean": model.image_mean, "map": model.image_map},
            "text_encoder": {"mean": model.caption_mean, "map": model.caption_map},
        }
        new = state.replace(params=_resized(params, state.params), batch_stats=batch_stats)
        fitted.append((new, {"ridge_images": ridge.images, "ridge_captions": ridge.captions}))
    return fitted


def _statistics(vectors: Fitted) -> dict[str, np.ndarray]:
    """What was fitted to the features, by its name in the head's encoders."""
    fields = vectors.fit._asdict() if vectors.fit else {}
    return {f"feature_{name}": np.asarray(value) for name, value in fields.items()}


def _resized(fitted: Any, like: Any) -> Any:
    """Pad arrays with zeros at their ends to the shapes that the model has.

    Words that only other splits have, numbers of quadrants where the regions are no grid, and
    components that small vectors lack are zeros, and change no vector.
    """

    def pad(array: np.ndarray, target: jax.Array) -> np.ndarray:
        padded = np.zeros(target.shape, np.float32)
        padded[tuple(map(slice, array.shape))] = array
        return padded

    return jax.tree.map(pad, fitted, like)
