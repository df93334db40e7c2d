"""Hashes of a run's data, by which it continues where the same data are in another directory."""

import hashlib
import json
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.contents import hash_array, hash_names
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pixels import Pixels
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.devices.hosts import is_primary
from l2rm_jax.errors import ConfigError, DataError, first_line
from l2rm_jax.run.config_file import CONFIG_FILE, HASHES_FILE, read_config
from l2rm_jax.run.results import write_json


def hash_data(data: Data) -> dict[str, str]:
    """Hash images, captions and pairs of each split by reading them once.

    Args:
      data: the data of a run, before any judgement.

    Returns:
      The hashes by the name of the part, such as "train images".
    """
    return {
        f"{split.split} {part}": digest
        for split in data.splits
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
    digest.update(f"{features.shape} {features.array.dtype.str}".encode())
    for block in features.blocks():
        digest.update(np.ascontiguousarray(features.array[block * features.stride]))
    hash_array(digest, features.region_counts(np.arange(len(features))))
    if isinstance(features, RegionFeatures) and features.scale is not None:
        hash_array(digest, features.scale)


def keep_hashes(config: ConfigDict, data: Data, workdir: str | Path) -> None:
    """Keep the hashes of a new run's data; compare them where a run continues with another path.

    Data that are not read from a directory have no hashes. On several hosts, host 0 keeps them.

    Args:
      config: config of the run that is to start or continue.
      data: the data that it describes, before any judgement.
      workdir: work directory; created for a new run.

    Raises:
      ConfigError: the data differ from those that the run began with; names the parts.
      DataError: the hashes of the run cannot be read.
    """
    file, path = Path(workdir) / HASHES_FILE, config.data.path
    if not (Path(workdir) / CONFIG_FILE).exists():
        if path and is_primary():
            write_json(file, hash_data(data))
        return
    before = read_config(workdir).data.path
    if before == path:
        return
    try:
        saved = dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{file}: cannot be read ({first_line(error)}), expected hashes of the data in {before}"
        ) from error
    found = hash_data(data)
    if differs := [name for name in found if found[name] != saved.get(name)]:
        raise ConfigError(
            f"{path}: found other {', '.join(differs)}, expected those that the run in {workdir} "
            f"began with, from {before}",
            hint=f"--workdir={Path(workdir)}-2",
        )
