"""Data sets as they lie on disk, each a view of `Pairs`: one file per layout.

* `precomp`: the directories of SCAN and NCR, which `l2rm import` writes too.
* `shards`: vectors in numbered files, as clip-retrieval writes them.
* `scenes`, the built-in data set, is generated here.

Captions are still text, or vectors: `loading` tokenizes them for a run.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.data import scenes
from l2rm_jax.data.columns import read_columns
from l2rm_jax.data.drawn_splits import Drawn
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.layouts.precomp import (
    StoredImages,
    check_directory,
    has_images,
    read_files,
)
from l2rm_jax.data.layouts.shards import open_shard_pairs
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.record import read_record
from l2rm_jax.data.shards import are_shards
from l2rm_jax.errors import ConfigError, DataError

SCENES = "scenes"  # the built-in data set
_HASHED = 16  # digits of a hash


def open_pairs(path: str | Path, split: str = "train") -> Pairs:
    """Open a split of a data set on disk; vectors and features stay there.

    Args:
      path: a directory that `l2rm import` wrote, or one in the layout of SCAN and NCR, or one of
        vectors in shards, which are a single split.
      split: "train", "dev", "test".

    Returns:
      The pairs, with the further columns and the picture files of the imported table. Pictures are
      opened as pixels where there are no features.

    Raises:
      DataError: a file is missing or invalid; lists every problem with its file and row.
      ConfigError: a package is missing that reads a file.
    """
    path = check_directory(path, or_shards=True)
    if are_shards(path):
        if split != "train":
            raise DataError(f"{path}: found vectors in shards, a single split, expected train")
        return open_shard_pairs(path)
    return with_table(read_files(path, split, in_pixels=not has_images(path, split)), path)


def with_table(
    pairs: Pairs, directory: str | Path, is_part: bool = False, drawn: Drawn | None = None
) -> Pairs:
    """Return the pairs with the further columns and the picture files of the user's table.

    Args:
      pairs: the pairs of a split.
      directory: directory of the data.
      is_part: whether `pairs` belong to the first images only.
      drawn: the splits that a run draws, if `pairs` are its training pairs among others.
    """
    if drawn is None:
        columns = read_columns(directory, pairs.split, len(pairs), is_part)
    else:
        whole = read_columns(directory, pairs.split, len(drawn.whole))
        columns = {name: values[drawn.rows] for name, values in whole.items()}
    pictures = picture_files(directory, pairs.image_ids)
    encoder = _encoder_hashes(read_record(directory) or {})
    return replace(pairs, columns=columns, pictures=pictures, encoder=encoder)


def _encoder_hashes(record: dict[str, Any]) -> str:
    """Return the start of the hashes of the weights of both encoders; "" if none is known."""
    sides = [(record.get("encoder") or {}).get(side) or {} for side in ("images", "captions")]
    hashes = [side.get("weights", "")[:_HASHED] for side in sides]
    return " and ".join(hashes) if all(hashes) else ""


def picture_files(directory: str | Path, ids: Sequence[str]) -> list[Path] | None:
    """Return the picture file of each image, if the directory was imported from files; else None.

    The table of imported vectors may name pictures as well: use them if the first one exists.
    """
    record = read_record(directory)
    if record is None:
        return None
    source = record["source"]
    if folder := source["pictures"]:
        return [Path(folder, name) for name in ids]
    files = [Path(source["path"] or directory).parent / name for name in ids]
    return files if files and os.path.isfile(files[0]) else None


def open_split(
    data_config: Any, split: str, in_words: bool = False, in_pixels: bool = False
) -> Pairs:
    """Open a split of the data set that the `data` part of a config describes.

    Features stay on disk. With `in_words`, caption vectors are ignored. With `in_pixels`, the
    images are pictures, and features are ignored.

    Raises:
      DataError: a file is missing or invalid.
      ConfigError: a field does not fit the data set.
    """
    if not is_scenes(data_config):
        return read_files(data_config.path, split, in_words, in_pixels)
    if in_pixels:
        raise ConfigError(
            f"data.name: found {SCENES!r}, whose images are features, expected a directory with "
            "pictures (train_pixels.npy) for the pretrained image encoder"
        )
    return _generate_scenes(data_config, split)


def is_scenes(data_config: Any) -> bool:
    """Whether the data are the built-in data set; data in a directory never are."""
    return data_config.name == SCENES and not data_config.path


def check_feature_shapes(images: Sequence[StoredImages]) -> None:
    """Check that all splits have the same number of regions and dimensions, or size of pictures.

    Raises:
      DataError: lists every file that differs from the first.
    """
    are_pixels = any(isinstance(each, Pixels) for each in images)
    of, unit = ("", "pixels") if are_pixels else ("regions ", "features")
    problems = [
        f"{other.name}: found {other.shape[1]} {of}x {other.shape[2]} {unit}, expected "
        f"{images[0].shape[1]} x {images[0].shape[2]}, as in {images[0].name}"
        for other in images[1:]
        if other.shape[1:] != images[0].shape[1:]
    ]
    if problems:
        raise DataError(*problems)


def check_caption_kinds(splits: Sequence[Pairs]) -> None:
    """Check that the captions of all splits are words, or vectors with the same dimensions.

    Raises:
      DataError: lists every split that differs.
    """
    vectors = {split.split: split.captions for split in splits if split.captions is not None}
    if not vectors:
        return
    first = next(iter(vectors.values()))
    problems = [
        f"{split.split}: found words as captions, expected vectors ({split.split}_caps.npy), as in "
        f"{first.name}"
        for split in splits
        if split.captions is None
    ] + [
        f"{other.name}: found vectors of {other.shape[2]} dimensions, expected {first.shape[2]}, "
        f"as in {first.name}"
        for other in vectors.values()
        if other.shape[2] != first.shape[2]
    ]
    if problems:
        raise DataError(*problems)


def _generate_scenes(config: Any, split: str) -> Pairs:
    made = scenes.generate(getattr(config, f"scenes_{split}", 0), config.scenes_seed, split)
    images = RegionFeatures.from_array(made.features, f"scenes/{split}")
    image_of = np.arange(len(made.captions)) // (len(made.captions) // len(images))
    return Pairs(images, None, image_of, made.captions, split=split, name=SCENES)
