"""The config and the data of a run, checked before any device is used."""

import math
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config import FIELDS, default, flat
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.streams import check_batch_size, check_queue_length
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError, Problems, named_errors
from l2rm_jax.evaluation.protocols import check_protocols, parse_protocols
from l2rm_jax.methods import Method, make_method
from l2rm_jax.methods.pair_weights import check_weights
from l2rm_jax.models import check_word_noise, make_model
from l2rm_jax.run.fold_runs import check_detector, fold_config, is_trained
from l2rm_jax.run.judgement import check_judgement, uses_judgement
from l2rm_jax.run.load_trained import check_start_fields
from l2rm_jax.run.pretrained import check_pretrained_fields, find_pretrained

_LARGEST_INT = 2**31 - 1  # devices use 32-bit integers


def read_data(config: ConfigDict, workdir: str | Path) -> Data:
    """Check the config of a run and load its data; uses no device and writes no file.

    Args:
      config: config of the run.
      workdir: work directory; a resumed run takes its vocabulary and mismatch index from there.

    Raises:
      ConfigError: a field is invalid, or does not fit the data.
      DataError: a data file is missing or invalid.
    """
    check_settings(config)  # before any file is read
    return check_data(config, load_run_data(config, workdir))


def check_data(config: ConfigDict, data: Data) -> Data:
    """Return the data of a run, checked against its config.

    Raises:
      ConfigError, DataError: as `read_data`.
    """
    method = check_settings(config)
    bases = data.pretrained.bases if data.pretrained else None
    check_word_noise(config.model, in_words=len(data.vocabulary) > 0, bases=bases)
    check_train_size(config, data.train, method)
    check_test_size(config, data.test)
    return data


def load_run_data(config: ConfigDict, workdir: str | Path | None) -> Data:
    """Load the data of a run, with the tokenizer of its pretrained weights if it has any.

    Args:
      config: config of the run, whose settings are valid.
      workdir: as in `load_data`.

    Raises:
      ConfigError, DataError: as `load_data` and `find_pretrained`; lists the problems of both.
    """
    problems = Problems()
    pretrained = problems.attempt(find_pretrained, config, workdir=workdir)
    data = problems.attempt(
        load_data, config.data, config.mismatch, workdir=workdir, pretrained=pretrained
    )
    problems.raise_all()
    return data


def check_values(*splits: TrainPairs) -> None:
    """Read the image features and caption vectors of some splits once, to check their values.

    It takes seconds for some thousand images. Features of the training split are checked as they
    are read, batch by batch.

    Raises:
      DataError: lists each row that holds a value that is not finite.
    """
    problems = Problems()
    for split in splits:
        for features in (split.images, split.tokens):
            for block in features.blocks() if isinstance(features, RegionFeatures) else ():
                problems.attempt(features.rows, block)
    problems.raise_all()


def check_settings(config: ConfigDict) -> Method:
    """Check all that can be checked without data: values, and names of methods, heads and so on.

    Returns:
      The method, with a model for a vocabulary of one word.

    Raises:
      ConfigError: one message for each problem.
    """
    problems = Problems()
    problems.attempt(check_fields, config)
    config = with_valid_fields(config)  # the next checks need values of the right type
    problems.attempt(parse_protocols, config.evaluation.protocol)
    problems.attempt(matmul_precision, config.precision)
    model = problems.attempt(make_model, config, vocabulary_size=1)
    method = problems.attempt(make_method, model=model, config=config)  # also if there is no model
    problems.attempt(check_judgement, config, method)
    problems.attempt(check_weights, config, method)
    problems.attempt(check_start_fields, config, method)
    problems.attempt(check_detector, config, method, is_used=uses_judgement(config))
    problems.attempt(check_pretrained_fields, config)
    problems.raise_all()
    if is_trained(config):
        with named_errors(f"judgement.detector={config.judgement.detector}"):
            check_settings(fold_config(config, "", fold=0))
    return method


def check_train_size(config: ConfigDict, train: TrainPairs, method: Method | None) -> None:
    """Check that the batch, and the queue of the method (if it is valid), fit the training split.

    Raises:
      DataError: the split has fewer pairs than a batch.
      ConfigError: the method's queue is not a multiple of the batch size, or too long.
    """
    size = config.train.batch_size
    check_batch_size(train, size)
    if method is not None:
        check_queue_length(train, method.queue_length, size)


def check_test_size(config: ConfigDict, test: TrainPairs) -> None:
    """Check that the test split has the images and captions that the protocols require.

    Raises:
      ConfigError: names the protocol and its requirement.
    """
    check_protocols(config.evaluation.protocol, len(test.images), test.captions_per_image)


def check_fields(config: ConfigDict) -> None:
    """Check the type and the range of every field.

    Names of methods, heads, protocols and the like are checked by `check_settings`.

    Raises:
      ConfigError: one message for each invalid field, with its value and the expected ones; or
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
        name: f"{name}: found {values[name]!r}, expected {expected}"
        for name, default_value in flat(default(config.plugins)).items()
        if (expected := _expected_type(name, values[name], default_value))
    }
    problems |= {
        name: f"{name}: found {values[name]!r}, expected {field.allowed.words}"
        for name, field in FIELDS.items()
        if name not in problems and field.allowed and not field.allowed.holds(values[name])
    }
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
