"""Types and ranges of the config fields, whatever the data and the method are."""

import math
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config import default, flat
from l2rm_jax.errors import ConfigError

_LARGEST_INT = 2**31 - 1  # devices use 32-bit integers

_CHOICES = {"train.non_finite": ("stop", "skip"), "optim.schedule": ("step", "cosine")}
_LIMITS = (  # fields, test of the value, the expected range in words
    (
        (
            *("train.checkpoint_steps", "train.log_steps", "optim.decay_epochs"),
            *("data.max_words", "train.length_groups"),
        ),
        lambda x: x >= 1,
        "at least 1",
    ),
    # Above the next limits, any machine runs out of memory or a program never ends.
    (
        (
            *("model.word_dim", "model.sim_dim", "evaluation.batch_size"),
            *("de.image_gru", "de.text_gru", "de.filters"),
        ),
        lambda x: 1 <= x <= 65536,
        "1 to 65536",
    ),
    (("model.embed_dim",), lambda x: 0 <= x <= 65536, "0 to 65536"),
    # Below, evidence overflows.
    (("decl.tau",), lambda x: x >= 0.02, "at least 0.02"),
    (("judgement.folds",), lambda x: 3 <= x <= 100, "3 to 100"),
    (("audit.top",), lambda x: 0 <= x <= 100, "0 to 100"),
    (("model.sgr_steps",), lambda x: 1 <= x <= 64, "1 to 64"),
    (("imram.rounds",), lambda x: 2 <= x <= 64, "2 to 64, as one round is the head cam"),
    # Above, the squared weights of the attention overflow.
    (("imram.smoothing",), lambda x: 0 < x <= 20, "more than 0, at most 20"),
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
            "judgement.every",
            "decl.triplet_weight",
            "audit.gallery",
            "co_teaching.mismatched_epoch",
            "sps.clean_epoch",
            "sps.noisy_epoch",
            "cream.hard_epoch",
            "cream.noisy_epoch",
            "train.networks",
            "l2rm.cost_learning_rate",
            "optim.weight_decay",
            "optim.text_rate",
            "optim.image_rate",
            "optim.base_epochs",
            "optim.warmup_steps",
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
            "optim.adam_epsilon",
        ),
        lambda x: x > 0,
        "more than 0",
    ),
    (("evaluation.dual_softmax",), lambda x: 0 <= x < math.inf, "a temperature, or 0 for none"),
    (("data.pixel_crop",), lambda x: 0 <= x <= 1, "a share of the side, 0 to 1"),
    (("rcsl.learning_share", "l2rm.rho", "audit.max_share"), lambda x: 0 <= x <= 1, "0 to 1"),
    (
        ("model.dropout", "model.region_mask", "model.word_noise"),
        lambda x: 0 <= x < 1,
        "at least 0 and less than 1",
    ),
    (("model.adapter_rank",), lambda x: 0 <= x <= 1024, "0 to 1024"),
    (("optim.beta2",), lambda x: 0 < x < 1, "more than 0 and less than 1"),
    (
        ("model.base_dropout",),
        lambda x: x == -1 or 0 <= x < 1,
        "at least 0 and less than 1, or -1",
    ),
)


def check_fields(config: ConfigDict) -> None:
    """Check the type and the range of every field.

    Names of methods, heads, protocols and the like are checked by `inputs.check_settings`.

    Raises:
      ConfigError: one message for each invalid field, with its value and what was expected; or
        the run would have no epoch at all.
    """
    problems = list(_field_problems(config).values())
    if not problems and config.train.warmup_epochs + config.train.epochs == 0:
        problems.append("train.warmup_epochs, train.epochs: expected at least one epoch in all")
    if problems:
        raise ConfigError(*problems)


def with_valid_fields(config: ConfigDict) -> ConfigDict:
    """Copy of the config with every invalid field reset to its default."""
    values, copy = flat(config), default(config.plugins)
    for name in _field_problems(config):
        del values[name]
    copy.update_from_flattened_dict(values)
    return copy


def _field_problems(config: ConfigDict) -> dict[str, str]:
    """Error message for each field whose value has the wrong type or is out of range."""
    values = flat(config)
    problems = {
        name: f"{name}: {values[name]!r}, expected {expected}"
        for name, default_value in flat(default(config.plugins)).items()
        if (expected := _expected_type(name, values[name], default_value))
    }
    problems |= {
        name: f"{name}: {values[name]}, expected {expected}"
        for names, is_valid, expected in _LIMITS
        for name in names
        if name not in problems and not is_valid(values[name])
    }
    for name, choices in _CHOICES.items():
        if values[name] not in choices:
            expected = " or ".join(choices)
            problems.setdefault(name, f"{name}: {values[name]!r}, expected {expected}")
    return problems


def _expected_type(name: str, value: Any, default_value: Any) -> str | None:
    """Describe the value that the default's type requires; None if `value` meets it."""
    kind = type(default_value)
    if type(value) is not kind and not (kind is float and type(value) is int):
        return f"a value of type {kind.__name__}"
    if kind is int and abs(value) > _LARGEST_INT:
        return f"{-_LARGEST_INT} to {_LARGEST_INT}"
    if (
        kind is float
        and not math.isfinite(value)
        and (name, value) != ("optim.grad_clip", math.inf)
    ):
        return "a finite number"
    if kind is str and "\0" in value:
        return "text without the character NUL"
    return None
