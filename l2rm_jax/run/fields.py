"""Checks of the values of config fields."""

import math
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config import default, flat
from l2rm_jax.errors import ConfigError

_LARGEST = 2**31 - 1  # what a device's integers hold

_LIMITS = (  # fields, what holds of them, in words
    (
        (
            *("train.checkpoint_steps", "train.log_steps", "optim.decay_epochs"),
            "data.max_words",
        ),
        lambda x: x >= 1,
        "at least 1",
    ),
    # Beyond these, an allocation fails or a program never ends, however large the machine.
    (
        ("model.embed_dim", "model.word_dim", "model.sim_dim", "evaluation.batch_size"),
        lambda x: 1 <= x <= 65536,
        "1 to 65536",
    ),
    (("model.sgr_steps",), lambda x: 1 <= x <= 64, "1 to 64"),
    (("data.max_frames",), lambda x: 1 <= x <= 4096, "1 to 4096"),
    (
        ("data.scenes_train", "data.scenes_dev", "data.scenes_test"),
        lambda x: 1 <= x <= 100_000,
        "1 to 100000",
    ),
    (
        ("train.batch_size",),
        lambda x: x >= 2,
        "at least 2, as a pair is compared with the others of its batch",
    ),
    (
        (
            "seed",
            "model.chunk",
            "train.warmup_epochs",
            "train.epochs",
            "loss.margin",
            "mismatch.paired_images",
            "l2rm.cost_learning_rate",
            "optim.weight_decay",
        ),
        lambda x: x >= 0,
        "at least 0",
    ),
    (
        (
            "loss.tau",
            "l2rm.epsilon",
            "rcsl.tau",
            "model.match_epsilon",
            "optim.learning_rate",
            "optim.grad_clip",
        ),
        lambda x: x > 0,
        "more than 0",
    ),
    (("evaluation.dual_softmax",), lambda x: 0 <= x < math.inf, "a temperature, or 0 for none"),
    (("rcsl.learning_share", "l2rm.rho"), lambda x: 0 <= x <= 1, "0 to 1"),
    (
        ("model.dropout", "model.region_mask", "model.word_noise"),
        lambda x: 0 <= x < 1,
        "at least 0 and less than 1",
    ),
)


def check_fields(config: ConfigDict) -> None:
    """Refuses values of another kind, and numbers out of range, which would end a run in its middle
    or teach it nothing.

    Raises:
      ConfigError: names each such field, what was found and what was expected.
    """
    problems = list(_wrong_fields(config).values())
    if not problems and config.train.warmup_epochs + config.train.epochs == 0:
        problems.append("train.warmup_epochs, train.epochs: expected at least one epoch in all")
    if problems:
        raise ConfigError(*problems)


def with_valid_fields(config: ConfigDict) -> ConfigDict:
    """A copy with the default of each field that `check_fields` refuses."""
    values, copy = flat(config), default()
    for name in _wrong_fields(config):
        del values[name]
    copy.update_from_flattened_dict(values)
    return copy


def _wrong_fields(config: ConfigDict) -> dict[str, str]:
    """What is wrong with each field that has a value of another kind or out of range."""
    values = flat(config)
    wrong = {
        name: f"{name}: {values[name]!r}, expected {expected}"
        for name, known in flat(default()).items()
        if (expected := _kind_problem(name, values[name], known))
    }
    wrong |= {
        name: f"{name}: {values[name]}, expected {expected}"
        for names, holds, expected in _LIMITS
        for name in names
        if name not in wrong and not holds(values[name])
    }
    if config.train.non_finite not in ("stop", "skip"):
        non_finite = f"train.non_finite: {config.train.non_finite!r}, expected stop or skip"
        wrong.setdefault("train.non_finite", non_finite)
    return wrong


def _kind_problem(name: str, value: Any, known: Any) -> str | None:
    """What was expected of a value whose default is `known`; None where it is of that kind."""
    kind = type(known)
    if type(value) is not kind and not (kind is float and type(value) is int):
        return f"a value of type {kind.__name__}"
    if kind is int and abs(value) > _LARGEST:
        return f"{-_LARGEST} to {_LARGEST}"
    if (
        kind is float
        and not math.isfinite(value)
        and (name, value) != ("optim.grad_clip", math.inf)
    ):
        return "a finite number"
    if kind is str and "\0" in value:
        return "text without the character NUL"
    return None
