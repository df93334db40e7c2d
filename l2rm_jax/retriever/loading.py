"""Load a trained model from a run or a published checkpoint, or several as an ensemble."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config import default
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.devices.parallel import in_float32
from l2rm_jax.errors import ConfigError, expand_home
from l2rm_jax.methods import make_method
from l2rm_jax.methods.networks import network
from l2rm_jax.models import make_model
from l2rm_jax.pretrained.hub import find_directory
from l2rm_jax.published.checkpoint import read_checkpoint, weights_for_vocabulary
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict
from l2rm_jax.retriever.network import Network
from l2rm_jax.retriever.retriever import Retriever
from l2rm_jax.run.load_trained import SAVED, Trained, read_trained, save_trained

CHECKPOINTS = ("best", "last")


@in_float32
def load(
    run: str | Path | Sequence[str | Path],
    *,
    vocabulary: str | Path | None = None,
    checkpoint: str = "best",
) -> Retriever:
    """Load a trained model, ready to encode and search; its training data are not needed.

    Args:
      run: work directory of a run, finished or not; or a directory of `Retriever.save_pretrained`,
        or its name on the Hugging Face Hub; or a published PyTorch checkpoint (`.tar`, `.pth`,
        `.pt`); or several of these, whose similarities are averaged.
      vocabulary: JSON file of the vocabulary that published checkpoints were trained with.
      checkpoint: "best", a run's best epoch by validation; "last", its newest checkpoint.

    Raises:
      ConfigError: no run, an unknown `checkpoint`, or a published checkpoint without vocabulary.
      CheckpointError: no finished epoch, or a damaged or incompatible checkpoint.
      DataError: the Hub does not give the model, or a vocabulary or tokenizer is damaged.

    Example:
      >>> l2rm_jax.load("runs/mine")
      Retriever(runs/mine: vse, l2rm, epoch 12 (best), rSum 301.4)
      >>> l2rm_jax.load(["runs/sgr", "runs/saf"])  # SGRAF
      >>> l2rm_jax.load("sgr.pth.tar", vocabulary="f30k_precomp_vocab.json")
    """
    if checkpoint not in CHECKPOINTS:
        raise ConfigError(f"checkpoint: found {checkpoint!r}, expected {' or '.join(CHECKPOINTS)}")
    runs = [run] if isinstance(run, str | os.PathLike) else list(run or ())
    runs = [*map(expand_home, runs)]
    if not runs:
        raise ConfigError("load: found no run, expected at least one")
    if vocabulary is not None and all(Path(one).is_dir() for one in runs):
        raise ConfigError("vocabulary cannot be combined with a run, which has its own")
    networks: list[Network] = []
    sources: list[tuple[ConfigDict, Mapping[str, Any] | None]] = []  # config and encoder of each
    for one in runs:
        if Path(one).is_file():
            sources.append((default(), None))
            networks += _published_networks(one, vocabulary, sources[-1][0])
        else:
            directory = find_directory(one, SAVED)
            trained = read_trained(directory, checkpoint)
            sources.append((trained.config, trained.encoder))
            networks += _run_networks(one, checkpoint, trained)
    config, encoder = sources[0]
    save = None
    if len(runs) == 1 and not Path(runs[0]).is_file():
        light = trained._replace(state=trained.state.replace(opt_state=(), own=()))
        save = partial(save_trained, light, directory)
    return Retriever(networks, config.data, encoder, save)


def _run_networks(workdir: str | Path, checkpoint: str, trained: Trained) -> Iterator[Network]:
    """Yield the networks of a run; some methods have several."""
    config, vocabulary, state = trained.config, trained.vocabulary, trained.state
    model = make_model(config, len(vocabulary) if vocabulary else 0, bases=trained.bases)
    count = make_method(model, config).networks
    rsum = "" if trained.rsum is None else f", rSum {trained.rsum:.1f}"
    for n in range(count):
        own = state if count == 1 else network(state, n)
        method = config.method if count == 1 else f"{config.method}, network {n + 1} of {count}"
        yield Network(
            str(workdir),
            f"{config.model.head}, {method}, epoch {trained.epoch} ({checkpoint}){rsum}",
            model,
            {"params": own.params, "batch_stats": own.batch_stats},
            vocabulary,
            split_sentences=config.data.split_sentences,
            precision=config.precision,
            batch_size=config.evaluation.batch_size,
        )


def _published_networks(
    path: str | Path, vocabulary: str | Path | None, config: ConfigDict
) -> Iterator[Network]:
    """Yield the networks of a published file, with the defaults of evaluation."""
    if vocabulary is None:
        raise ConfigError(
            f"{path}: a published checkpoint requires the JSON file of the vocabulary that it was "
            "trained with",
            hint=f'load("{path}", vocabulary="FILE.json")',
        )
    words = Vocabulary.read(expand_home(vocabulary))
    for key, weights in read_checkpoint(path).items():
        weights = weights_for_vocabulary(weights, len(words), f"{path}: {key}")
        model = model_from_state_dict(weights, dropout=0.0)
        yield Network(
            str(path),
            f"{model.config.model.head}, {key}",
            model,
            variables_from_state_dict(weights),
            words,
            split_sentences=config.data.split_sentences,
            precision=config.precision,
            batch_size=config.evaluation.batch_size,
        )
