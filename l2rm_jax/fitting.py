"""Train a retrieval model on pairs in memory: `l2rm_jax.fit`."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.cli.config_flags import fitting_batch
from l2rm_jax.config import set_epochs
from l2rm_jax.data.content_hashes import hash_images
from l2rm_jax.data.contents import PART
from l2rm_jax.data.drawn_splits import draw_splits, take_images
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.layouts import open_pairs
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.pairs import Captions, Images, Pairs
from l2rm_jax.errors import ConfigError, DataError, expand_home
from l2rm_jax.linear.rows import Rows
from l2rm_jax.retriever import Retriever, load
from l2rm_jax.run.config_file import load_config
from l2rm_jax.run.run import Run
from l2rm_jax.train import train


class EpochReport(NamedTuple):
    """Report on a finished epoch.

    Attributes:
      epoch: number of finished epochs, from 1.
      epochs: number of all epochs.
      rsum: sum of the six recalls of the validation pairs, in percent, 0 to 600.
      recalls: the recalls, by name.
    """

    epoch: int
    epochs: int
    rsum: float
    recalls: Mapping[str, float]


def fit(
    pairs: Pairs | str | Path,
    workdir: str | Path | None = None,
    recipe: str = "linear",
    dev: float = 0.1,
    epochs: int | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> Retriever:
    """Train a retrieval model, robust to mismatched pairs, and return it with its best epoch.

    Args:
      pairs: the pairs, or a directory of imported data, whose training split is used.
      workdir: work directory of the run; the same call continues a run that was stopped. None: a
        temporary one, removed with the retriever.
      recipe: `linear`, for most data, or `recall`, for the best recalls (`configs/recipes.py`).
      dev: share of the images that validate the epochs, above 0 and below 1; chosen by their
        contents, whatever their order.
      epochs: number of epochs; None: the recipe's number.
      on_epoch: receives a report on each epoch.

    Raises:
      ConfigError: an unknown recipe, `dev` is out of range, or `workdir` has another run.
      DataError: too few images, pictures without features, a value that is not finite, or `workdir`
        has a run of other pairs.
      StoppedError: SIGTERM or Ctrl-C; the run is saved in `workdir`, if there is one.

    Example:
      >>> audit = l2rm_jax.audit_pairs(images, captions)
      >>> retriever = l2rm_jax.fit(audit.pairs)
      >>> retriever.search(["a red ball"], retriever.encode_images(images), top_k=3)
    """
    if not isinstance(pairs, Pairs | str | Path):
        raise DataError(f"pairs: found {type(pairs).__name__}, expected Pairs or a directory")
    pairs = pairs if isinstance(pairs, Pairs) else open_pairs(pairs)
    pairs.check_vectors()
    if isinstance(pairs.images, Pixels):
        raise DataError(f"{pairs.images.name}: found pictures, expected vectors or features")
    splits = split_pairs(pairs, dev)
    config = _config(recipe, splits[0], epochs)

    def report(run: Run, finished: int, recalls: Mapping[str, float]) -> None:
        if on_epoch is not None:
            on_epoch(EpochReport(finished, run.total_epochs, recalls["rsum"], dict(recalls)))

    with ExitStack() as stack:
        workdir = (
            stack.enter_context(TemporaryDirectory(prefix="l2rm-")) if workdir is None else workdir
        )
        workdir = Path(expand_home(workdir))
        three = (*splits, splits[1])
        data = load_data(config.data, config.mismatch, workdir=workdir, splits=three)
        train(config, workdir, on_epoch=report, data=data)
        retriever = load(workdir)
        weakref.finalize(retriever, stack.pop_all().close)
    return retriever


def split_pairs(pairs: Pairs, dev: float) -> tuple[Pairs, Pairs]:
    """Split pairs into training and validation, as training reads them.

    Equal images are in one split. Captions of one image are made adjacent, and images without a
    caption are left out.

    Args:
      pairs: the pairs.
      dev: share of the images in the second split, above 0 and below 1.

    Raises:
      ConfigError: `dev` is out of range.
      DataError: a split has fewer than 2 images.
    """
    if not 0 < dev < 1:
        raise ConfigError(f"dev: found {dev}, expected more than 0 and less than 1")
    images = np.unique(pairs.image_of)
    features = _as_features(pairs.images, "images", "region")
    split = draw_splits(hash_images(features)[images], [dev], "pairs")
    captions = None if pairs.captions is None else _as_features(pairs.captions, "captions", "word")
    whole = replace(pairs, images=features, captions=captions, words=None, columns={})
    train, validation = images[split == 0], images[split == 1]
    return take_images(whole, train, "train"), take_images(whole, validation, "dev")


def _as_features(vectors: Images | Captions, name: str, vector: str) -> RegionFeatures:
    """Return features; vectors that are computed when they are read are computed once."""
    if isinstance(vectors, RegionFeatures):
        return vectors
    if not isinstance(vectors, np.ndarray):
        vectors = _read(vectors)
    return RegionFeatures.from_array(vectors, name, vector=vector)


def _read(vectors: Rows) -> np.ndarray:
    starts = range(0, vectors.shape[0], PART)
    rows = (np.arange(start, min(start + PART, vectors.shape[0])) for start in starts)
    return np.concatenate([np.asarray(vectors[part]) for part in rows])


def _config(recipe: str, pairs: Pairs, epochs: int | None) -> ConfigDict:
    """Return the config of a recipe for these training pairs."""
    config = load_config(f"recipes:{recipe}", ())
    config.data.name, config.data.test_split = pairs.name, "dev"
    config.train.batch_size = fitting_batch(len(pairs), config.train.batch_size)
    if epochs is not None:
        set_epochs(config, warmup=0, epochs=epochs)
    return config
