"""One weight per pair in the losses of `infonce`, `triplet` and `sigmoid` (`train.weight`).

The state keeps a score per pair under the name `SCORE`. It comes from the judgement, from a file,
or from the model as it is before the first step. A curve turns it into a weight: in the plan, or,
for OSA's code, whose weights depend on the batch, in the step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax.data import filters
from l2rm_jax.errors import ConfigError, DataError, check_names
from l2rm_jax.losses import weights as curves
from l2rm_jax.methods import base
from l2rm_jax.methods.pair_values import read_pair_values

NONE, BY_JUDGEMENT, BY_SCORE, BY_START = SOURCES = ("none", "judgement", "score", "start")
LINEAR, OSA, OSA_CODE = CURVES = ("linear", "osa", "osa_code")
SCORE = "score_of_weight"  # of `Method.pair_values`


def check_weights(config: Any, method: base.Method) -> None:
    """Check `train.weight` against the method and the other fields.

    Raises:
      ConfigError: one message for each field that does not fit.
    """
    train, scores = config.train, config.data.scores
    check_names("train", train, {"weight": SOURCES, "weight_curve": CURVES})
    wrong, found = [], f"train.weight: found {train.weight!r}, expected"
    if train.weight != NONE and SCORE not in method.pair_values:
        instead = "train.draw=judgement weighs them" if method.step is None else "it chooses them"
        wrong.append(f"{found} 'none', as {config.method} does not weigh its pairs; {instead}")
    if train.weight == BY_START and not (config.model.start or _starts_from_pretrained(config)):
        wrong.append(
            f"{found} none, judgement or score, as the model starts without training, or from a "
            "fit to these pairs; set model.start, or model.embed_dim=0 with a pretrained encoder "
            "of both sides"
        )
    if train.weight == BY_SCORE and not scores:
        wrong.append("data.scores: found no file, train.weight=score requires one")
    if scores and train.weight != BY_SCORE and config.data.filter not in filters.BY_SCORE:
        wrong.append(
            f"data.scores cannot be combined with data.filter={config.data.filter} and "
            f"train.weight={train.weight}; set data.filter to score or share, or train.weight=score"
        )
    if train.weight == BY_JUDGEMENT and train.weight_curve != LINEAR:
        wrong.append(
            f"train.weight_curve: found {train.weight_curve!r}, expected 'linear' with "
            "train.weight=judgement: OSA's curves are for cosines, and give a pair that is surely "
            "matched no weight"
        )
    if wrong:
        raise ConfigError(*wrong)


def _starts_from_pretrained(config: Any) -> bool:
    """Whether the model starts from the cosines of a CLIP or SigLIP."""
    model = config.model
    sides = model.text_encoder, model.image_encoder
    one_model = sides[0] == sides[1] and not model.pretrained_images
    return not model.embed_dim and one_model


def pair_values(settings: Any) -> Mapping[str, float]:
    """`Method.pair_values` of a method that weighs its pairs; empty without `train.weight`."""
    return {} if settings.weight == NONE else {SCORE: 0.0}


def plan_scores(
    settings: Any, model: Any, score_pairs: Callable, dataset: Any, epoch: int
) -> dict[str, Float[np.ndarray, " N"]]:
    """`EpochPlan.values` of a method that weighs its pairs.

    Args:
      settings: the `train` part of the config.
      model: the model.
      score_pairs: as in `Method.plan`.
      dataset: the training pairs, with `posterior` or `scores` where `train.weight` requires them.
      epoch: the epoch, counted from 0. The model scores the pairs before the first one alone.

    Raises:
      DataError: no pair would have a weight, or the scores do not fit the curve.
    """
    if settings.weight == NONE or (settings.weight == BY_START and epoch):
        return {}
    if settings.weight == BY_JUDGEMENT:
        scores = 1 - dataset.posterior
    elif settings.weight == BY_SCORE:
        scores = dataset.scores.astype(np.float32)
        _check_scale(scores, settings.weight_curve)
    else:
        own, others = score_pairs(_start_scores(model)).T
        scores = own if settings.weight_curve == LINEAR else own - others.mean()
    if not (scores > 0).any():
        raise DataError(
            f"train.weight={settings.weight}: none of the {len(scores)} pairs has a weight above "
            f"0: found scores {scores.min():.3g} to {scores.max():.3g}"
        )
    return {SCORE: scores}


def batch_weights(
    settings: Any, state: base.TrainState, batch: Any, axis_name: str | None
) -> float | Float[Array, " B"]:
    """Weight of each pair of the global batch; 1 without `train.weight`."""
    if settings.weight == NONE:
        return 1.0
    scores = read_pair_values(state, SCORE, batch, axis_name)
    if settings.weight_curve == LINEAR:
        return jnp.clip(scores, 0.0, 1.0)
    return curves.osa(scores) if settings.weight_curve == OSA else curves.osa_code(scores)


def _start_scores(model: Any) -> Callable:
    """Score of each pair by the model as it is, and its mean score with the rest of the batch."""

    def scores(state: base.TrainState, batch: Any) -> Float[Array, "B 2"]:
        sims = base.evaluate(model, state, batch)
        own = jnp.diagonal(sims)
        others = (jnp.sum(sims, axis=1) - own) / max(len(sims) - 1, 1)
        return jnp.stack([own, others], axis=1)

    return scores


def _check_scale(scores: Float[np.ndarray, " N"], curve: str) -> None:
    """Raise `DataError` for scores on another scale than the curve's."""
    low, high = scores.min(), scores.max()
    if curve != LINEAR and low > 0:
        raise DataError(
            f"data.scores: found {low:.3g} to {high:.3g}, expected some below 0 with "
            f"train.weight_curve={curve}: subtract the mean score of unrelated images and "
            "captions, or set train.weight_curve=linear"
        )
    if curve == OSA and high > 1:
        raise DataError(
            f"data.scores: found up to {high:.3g}, expected differences of cosines, at most 1, "
            "with train.weight_curve=osa"
        )
