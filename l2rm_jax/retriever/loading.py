"""Load a model from a run or a published checkpoint, several, or none for vectors of one space."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from l2rm_jax.config import default
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.record import read_record
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.devices.parallel import in_float32
from l2rm_jax.errors import ConfigError, DataError, expand_home
from l2rm_jax.evaluation.scoring import paired_similarities, unit_means, vector_similarities
from l2rm_jax.methods import make_method
from l2rm_jax.methods.networks import network
from l2rm_jax.models import make_model
from l2rm_jax.pretrained.hub import find_directory
from l2rm_jax.published.checkpoint import read_checkpoint, weights_for_vocabulary
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict
from l2rm_jax.retriever.network import Network
from l2rm_jax.retriever.retriever import Retriever
from l2rm_jax.retriever.sources import WITH_ENCODER
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


def open_vectors(directory: str | Path) -> Retriever:
    """Make a retriever for vectors of one space, with their cosine as similarity.

    Texts are encoded by the encoder that the directory names, if it was imported.

    Args:
      directory: the data, with vectors of images; several vectors per image are averaged.

    Raises:
      DataError: `dataset.json` of the directory is damaged.

    Example:
      >>> retriever = open_vectors("data/clip")
      >>> print(retriever.search(["a dog on a beach"], "data/clip:test"))
    """
    directory = expand_home(directory)
    record = read_record(directory)
    config = default()
    config.data.path = directory
    encoder = record["encoder"] if record else None
    return Retriever([SharedSpace(directory)], config.data, encoder)


class SharedSpace:
    """The space of the vectors, with the members of a `Network` that a retriever uses."""

    head, metric, vocabulary, preparation = "cosine", "ip", None, None
    has_alignment = False

    def __init__(self, name: str):
        self.name, self.title = name, "cosine of the stored vectors"
        self.fingerprint = hashlib.blake2b(b"cosine", digest_size=8).hexdigest()
        self._size: int | None = None  # of the vectors encoded so far

    def tokens_of(self, captions: Sequence[str] | RegionFeatures) -> RegionFeatures:
        """Return the captions, if they are vectors.

        Raises:
          DataError: the captions are text, and there is no encoder.
        """
        if not isinstance(captions, RegionFeatures):
            raise DataError(
                f"captions: found text, expected vectors, as {self.name} has no caption encoder",
                hint=WITH_ENCODER,
            )
        return captions

    def encode_images(
        self, images: RegionFeatures | Pixels, done: Callable[[int], None]
    ) -> Float[np.ndarray, "I D"]:
        """Unit vectors of images.

        Raises:
          DataError: pictures, a mean of zero, or vectors of another size than those before.
        """
        if isinstance(images, Pixels):
            raise DataError(f"{images.name}: found pictures, expected vectors of one space")
        return self._encode(images, done)

    def encode_captions(
        self, tokens: RegionFeatures, done: Callable[[int], None]
    ) -> Float[np.ndarray, "J D"]:
        """Unit vectors of captions; errors as above."""
        return self._encode(tokens, done)

    def similarity(
        self,
        images: Float[np.ndarray, "I D"],
        captions: Float[np.ndarray, "J D"],
        done: Callable[[int], None],
    ) -> Float[np.ndarray, "I J"]:
        """Cosine of every image with every caption."""
        return vector_similarities(images, captions, self.metric)

    def pair_similarities(
        self,
        images: Float[np.ndarray, "I D"],
        captions: Float[np.ndarray, "J D"],
        rows: Int[np.ndarray, "P 2"],
    ) -> Float[np.ndarray, " P"]:
        """Cosines of selected pairs of rows, image and caption."""
        return paired_similarities(images[rows[:, 0]], captions[rows[:, 1]], self.metric)

    def _encode(
        self, features: RegionFeatures, done: Callable[[int], None]
    ) -> Float[np.ndarray, "N D"]:
        size = features.shape[-1]
        if self._size not in (None, size):
            raise DataError(
                f"{features.name}: found vectors of {size} dimensions, expected {self._size}, as "
                "all vectors must be in one space"
            )
        self._size = size
        vectors = unit_means(features).astype(np.float32)
        done(len(features))
        return vectors
