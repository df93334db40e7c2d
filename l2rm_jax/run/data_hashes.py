"""Hashes of a run's data, by which it continues and is tested on these data and no others.

Files that have not changed by their size, times and place on the disk are not read again.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.contents import hash_array, hash_names
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.npy_files import still_whole
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.record import is_undivided
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.devices.hosts import is_primary
from l2rm_jax.errors import ConfigError, DataError, first_line
from l2rm_jax.jobs.regular_files import has_file, parse_json
from l2rm_jax.run.config_file import CONFIG_FILE, HASHES_FILE, read_config
from l2rm_jax.run.results import write_json

_STATES = "states"  # in the file of the hashes: of the data's files


def _hash_splits(splits: Sequence[TrainPairs]) -> dict[str, str]:
    """Hash images, captions and pairs of each split by reading them once.

    Returns:
      The hashes by the name of the part, such as "train images".
    """
    return {
        f"{split.split} {part}": digest
        for split in splits
        for part, digest in _hash_split(split).items()
    }


def _hash_split(split: TrainPairs) -> dict[str, str]:
    pairs = hashlib.blake2b(digest_size=16)
    hash_names(pairs, split.stored_image)
    hash_array(pairs, split.caption_image)
    captions = hashlib.blake2b(digest_size=16)
    hash_names(captions, np.zeros(0, np.int64), split.pairs.texts)
    if isinstance(split.tokens, RegionFeatures):
        _hash_stored(captions, split.tokens)
    images = hashlib.blake2b(digest_size=16)
    _hash_stored(images, split.images)
    parts = {"images": images, "captions": captions, "pairs": pairs}
    return {name: digest.hexdigest() for name, digest in parts.items()}


def _hash_stored(digest: "hashlib.blake2b", features: RegionFeatures | Pixels) -> None:
    """Hash the stored numbers; unlike `contents.hash_features`, without a check of their values."""
    for block in features.blocks():
        digest.update(np.ascontiguousarray(still_whole(features.array)[block]))
    _hash_form(digest, features)


def _hash_form(digest: "hashlib.blake2b", features: RegionFeatures | Pixels) -> None:
    """Hash shape, type, numbers of regions and scale."""
    digest.update(f"{features.shape} {features.array.dtype.str}".encode())
    hash_array(digest, features.region_counts(np.arange(len(features))))
    if isinstance(features, RegionFeatures) and features.scale is not None:
        hash_array(digest, features.scale)


def keep_hashes(config: ConfigDict, data: Data, workdir: str | Path) -> None:
    """Keep the hashes of a new run's data; compare them where a run continues.

    Data that are not read from a directory have no hashes. On several hosts, host 0 keeps them.

    Args:
      config: config of the run that is to start or continue.
      data: the data that it describes, before any judgement.
      workdir: work directory; created for a new run.

    Raises:
      ConfigError: the data differ from those that the run began with; names the parts.
      DataError: the hashes of the run cannot be read.
    """
    if (Path(workdir) / CONFIG_FILE).exists():
        check_hashes(config, data.splits, workdir)
    elif config.data.path and is_primary():
        hashes = {**_hash_splits(data.splits), _STATES: _states(data.splits)}
        write_json(Path(workdir) / HASHES_FILE, hashes)


def check_hashes(config: ConfigDict, splits: Sequence[TrainPairs], workdir: str | Path) -> None:
    """Compare the data of a run with those that it began with, in the same or another directory.

    Args:
      config: config of the run, with the directory where its data are now.
      splits: some of its splits, as `Data` has them.
      workdir: work directory.

    Raises:
      ConfigError: the data differ from those that the run began with; names the parts.
      DataError: the hashes of the run cannot be read.
    """
    file, path = Path(workdir) / HASHES_FILE, config.data.path
    before = read_config(workdir).data.path
    if not path or (not has_file(file) and before == path):
        return
    try:
        saved = dict(parse_json(file.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{file}: cannot be read ({first_line(error)}), expected hashes of the data in {before}"
        ) from error
    states = _states(splits)
    if all(state and saved.get(_STATES, {}).get(name) == state for name, state in states.items()):
        return
    found = _hash_splits(splits)
    if differs := [name for name in found if found[name] != saved.get(name)]:
        began = "" if before == path else f", from {before}"
        raise ConfigError(
            f"{path}: found other {', '.join(differs)}, expected those that the run in {workdir} "
            f"began with{began}",
            hint=f"--workdir={Path(workdir)}-2",
        )


def check_own_images(workdir: str | Path, directory: str | Path, split: Pairs) -> None:
    """Compare the images of a split that is used with a run, if it is the run's own test split.

    One that the run has drawn itself is not compared.

    Args:
      workdir: work directory of the run, or another name of a model.
      directory: directory of the split.
      split: the split.

    Raises:
      ConfigError: they differ from those that the run began with.
    """
    file = Path(workdir) / HASHES_FILE
    if not has_file(file) or is_undivided(directory):
        return
    own = read_config(workdir).data
    is_own = Path(own.path).resolve() == Path(directory).resolve() and own.test_split == split.split
    saved = parse_json(file.read_bytes()).get(f"{split.split} images")
    if not is_own or saved is None:
        return
    digest = hashlib.blake2b(digest_size=16)
    _hash_stored(digest, split.images)
    if digest.hexdigest() != saved:
        raise ConfigError(
            f"{directory}: found other {split.split} images, expected those that the run in "
            f"{workdir} began with; copy data that the run has not seen to another directory"
        )


def _states(splits: Sequence[TrainPairs]) -> dict[str, list[Any] | None]:
    """Describe each split without reading features; None for features that are not in one file."""
    return {split.split: _state(split) for split in splits}


def _state(split: TrainPairs) -> list[Any] | None:
    """Hash all that is in memory, and describe the files of features.

    The time of the last change of a file's state (`ctime`) cannot be set back.
    """
    digest = hashlib.blake2b(digest_size=16)
    hash_names(digest, split.stored_image, split.pairs.texts)
    hash_array(digest, split.caption_image)
    files = []
    for features in (split.images, split.tokens):
        if isinstance(features, RegionFeatures | Pixels):
            if not os.path.isfile(features.name):
                return None
            _hash_form(digest, features)
            file = os.stat(features.name)
            files.append([file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino])
    return [digest.hexdigest(), *files]
