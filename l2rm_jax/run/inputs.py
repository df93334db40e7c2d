"""What a run is given: its config and data, checked before a device is touched."""

from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.data.loading import load_data
from l2rm_jax.data.pairs import Data, PairDataset
from l2rm_jax.data.streams import check_batch_size, check_queue_length
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import Problems
from l2rm_jax.evaluation.protocols import check_protocols, parse_protocols
from l2rm_jax.methods import make_method
from l2rm_jax.models import check_word_noise, make_model
from l2rm_jax.run.fields import check_fields, with_valid_fields


def read_data(config: ConfigDict, workdir: str | Path) -> Data:
    """The data of a run, its config refused where it can be: no device is touched, no file written.

    Raises:
      ConfigError, DataError: a field, a name or a file is not what it should be.
    """
    check_settings(config)
    data = load_data(config.data, config.mismatch, workdir=workdir)
    check_word_noise(config.model, in_words=len(data.vocabulary) > 0)
    check_train_size(config, data.train)
    check_test_size(config, data.test)
    return data


def check_settings(config: ConfigDict) -> None:
    """Refuses what needs no data to be seen as wrong: values, and names that do not exist.

    Raises:
      ConfigError: all of it at once.
    """
    problems = Problems()
    problems.attempt(check_fields, config)
    config = with_valid_fields(config)  # what follows needs values of the right kinds
    problems.attempt(parse_protocols, config.evaluation.protocol)
    problems.attempt(matmul_precision, config.precision)
    model = problems.attempt(make_model, config.model, vocabulary_size=1)
    problems.attempt(make_method, model=model, config=config)  # even where there is no model
    problems.raise_all()


def check_train_size(config: ConfigDict, train: PairDataset) -> None:
    """Refuses a training split that the batch or the queue does not fit.

    Raises:
      ConfigError, DataError: the batch is larger, or the queue is not made of batches.
    """
    size = config.train.batch_size
    check_batch_size(train, size)
    check_queue_length(train, config.l2rm.queue_length, size)


def check_test_size(config: ConfigDict, test: PairDataset) -> None:
    """Refuses a test split that is not what the evaluation's protocols are computed on.

    Raises:
      ConfigError: says what a protocol needs.
    """
    check_protocols(config.evaluation.protocol, len(test.images), test.captions_per_image)
