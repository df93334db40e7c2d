"""Read inputs to encode: arrays, texts, or the name of a split such as `data/mine:test`.

A run keeps the record of the encoder that made its imported data, to encode captions and pictures
as in training.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from l2rm_jax.data import scenes
from l2rm_jax.data.captions import caption_files, read_image_ids
from l2rm_jax.data.contents import are_texts, as_list
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.frame_columns import as_numpy, as_vectors
from l2rm_jax.data.layouts import SCENES, open_split
from l2rm_jax.data.layouts.precomp import read_images
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.pictures import upright_pictures
from l2rm_jax.data.record import check_files, read_record
from l2rm_jax.data.scenes.drawing import write_png
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import ConfigError, DataError, expand_home, nearest_flag
from l2rm_jax.pretrained.feature_encoder import PIXELS, Encoder
from l2rm_jax.pretrained.preparation import Preparation, prepare

SPLIT = "test"  # default split of a directory
# Hint for captions that are text, when no encoder is known.
WITH_ENCODER = "l2rm import --source=pairs.csv --encoder=transformers:DIR --out=D"

Images = str | Path | np.ndarray | Sequence[Any]
Captions = str | Sequence[str] | np.ndarray | RegionFeatures


@dataclasses.dataclass(frozen=True)
class Source:
    """Images or captions to encode.

    Attributes:
      items: features or pixels of images, vectors of captions, or texts.
      ids: the user's id of each.
      texts: a text to show for each; None without.
      captions: the stored captions of each image; None for captions, and without any.
      record: the `dataset.json` of the directory of images; None without.
    """

    items: RegionFeatures | Pixels | list[str]
    ids: Sequence[str]
    texts: Sequence[str] | None = None
    captions: Sequence[Sequence[str]] | None = None
    record: Mapping[str, Any] | None = None

    @property
    def folder(self) -> str | None:
        """Directory of the pictures that the ids name."""
        return self.record and self.record["source"]["pictures"]


def image_source(
    images: Images,
    region_counts: Int[np.ndarray, " N"] | Sequence[int] | None,
    ids: Sequence[str] | None,
    data_config: ConfigDict,
    preparation: Preparation | None = None,
    encode: Callable[[Sequence[Any]], RegionFeatures] | None = None,
) -> Source:
    """Read images from an array, from pictures, or from a named split of a directory.

    Args:
      images: features `[N, R, D]` or `[N, D]`, or `DIR:split`; `DIR` alone is its split "test"; or
        Pillow pictures or names of files, which become the ids. For a model that encodes pictures,
        also pixels `[N, S, S, 3]`.
      region_counts: number of regions of each image, if sets differ.
      ids: the user's id of each image; None: its row number.
      data_config: the section `data` of the run, which defines the layout of its data.
      preparation: preprocessing of the model's pictures; None if it takes features.
      encode: computes features of pictures, for a model that takes features.

    Raises:
      DataError: no rows, a wrong shape or dtype, another number of ids, or unreadable files.
      ConfigError: `region_counts` or `ids` for a directory.
    """
    if isinstance(images, str | Path):
        images = expand_home(images)
    if isinstance(images, str) and Path(images).is_file():
        images = [images]
    if not isinstance(images, str):
        images = _listed(images)
        items = _encoded_pictures(images, preparation, encode)
        if items is None:
            array = _array("images", images)
            counts = None if region_counts is None else np.asarray(region_counts)
            items = RegionFeatures.from_array(array, "images", counts)
        elif ids is None and all(isinstance(name, str | Path) for name in images):
            ids = images
        return Source(items, _checked_ids(ids, len(items), "images"))
    if region_counts is not None or ids is not None:
        raise ConfigError(f"region_counts and ids cannot be combined with a directory ({images})")
    stored = open_named_split(images, data_config, in_pixels=preparation is not None)
    texts = captions = None
    if len(stored):
        starts = np.searchsorted(stored.image_of, np.arange(len(stored.images) + 1))
        labels = stored.labels
        captions = [labels[slice(*ends)] for ends in itertools.pairwise(starts)]
        texts = [own[0] for own in captions]
    record = read_record(split_name(images)[0])
    return Source(stored.images, stored.image_ids, texts, captions, record)


def _listed(images: Any) -> np.ndarray | Sequence[Any]:
    """Return numbers of any library as an array of NumPy; names and pictures as a list."""
    if hasattr(images, "getexif"):  # of Pillow
        return [images]
    if isinstance(images, Sequence):
        return images
    if not hasattr(images, "__array__"):
        return as_list("images", images)
    array = as_numpy(images)
    return array.tolist() if array.dtype.kind in "OU" else array


def _encoded_pictures(
    images: np.ndarray | Sequence[Any],
    preparation: Preparation | None,
    encode: Callable[[Sequence[Any]], RegionFeatures] | None,
) -> RegionFeatures | Pixels | None:
    """Pixels or features of Pillow pictures or of named files; None for other images."""
    is_array = isinstance(images, np.ndarray)
    if preparation is None:
        first = None if is_array or not len(images) else images[0]
        is_picture = isinstance(first, str | Path) or hasattr(first, "getexif")
        return encode(images) if encode and is_picture else None
    if is_array:
        return Pixels.from_array(images, "images")
    return Pixels.from_array(prepare(upright_pictures(images), preparation), "images")


def caption_source(captions: Captions, ids: Sequence[str] | None) -> Source:
    """Read captions from texts, or vectors `[N, D]` or `[N, L, D]`; ids as in `image_source`.

    Raises:
      DataError: no caption, an empty caption, a wrong shape or dtype, or a wrong number of ids.
    """
    if isinstance(captions, RegionFeatures):
        return Source(captions, _checked_ids(ids, len(captions), "captions"))
    if isinstance(captions, str):
        captions = [captions]
    given = captions if hasattr(captions, "__array__") else as_list("captions", captions)
    if not len(given):
        raise DataError("captions: found none, expected at least one")
    if not are_texts(given):
        array = _array("captions", given)
        vectors = RegionFeatures.from_array(array, "captions", vector="word")
        return Source(vectors, _checked_ids(ids, len(vectors), "captions"))
    texts = as_list("captions", given)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(
                f"captions: found a {type(text).__name__} as number {row}, expected text"
            )
    return Source(texts, _checked_ids(ids, len(texts), "captions"), texts)


def open_named_split(name: str, data_config: ConfigDict, in_pixels: bool = False) -> Pairs:
    """Open `DIR:split`, `DIR` (its split "test"), or `scenes:split`, the built-in data set.

    A directory needs no captions.

    Args:
      name: the name.
      data_config: the section `data` of the run, which defines the layout of its data.
      in_pixels: whether to read its pictures instead of features.

    Raises:
      DataError: there is no such split, or its files cannot be read.
    """
    directory, split = split_name(name)
    config = data_config.copy_and_resolve_references()
    if _is_scenes(directory):
        if split not in scenes.SPLITS:
            raise DataError(f"{name}: expected scenes:{{{','.join(scenes.SPLITS)}}}")
        config.update({"name": SCENES, "path": ""})
        return open_split(config, split, in_pixels=in_pixels)
    if not Path(directory).is_dir():
        raise DataError(
            f"{name}: found no directory {directory}, expected DIR:split",
            hint=nearest_flag("gallery", directory, f":{split}"),
        )
    config.update({"name": Path(directory).name, "path": directory})
    path = Path(directory)
    has_captions = caption_files(path, split) or split_file(path, split, "vectors").exists()
    if not has_captions:
        check_files(path, split)
        images = read_images(path, split, in_pixels)
        ids = read_image_ids(directory, split, len(images))
        return Pairs(images, None, np.zeros(0, np.int64), texts=[], ids=ids, split=split)
    return open_split(config, split, in_pixels=in_pixels)


def scene_pictures(
    name: str, data_config: ConfigDict, folder: Path
) -> Callable[[Any, int], Path] | None:
    """Make a function that draws the pictures of the built-in data set by row; else None.

    Args:
      name: the split: `scenes:test`.
      data_config: the section `data` of the run.
      folder: directory to draw them in.
    """
    directory, split = split_name(name)
    if not _is_scenes(directory):
        return None
    count, seed = data_config[f"scenes_{split}"], data_config.scenes_seed
    made = scenes.generate(count, seed, split).scenes

    def picture(_: Any, row: int) -> Path:
        path = folder / f"{row}.png"
        write_png(made[row], path)
        return path

    return picture


def _is_scenes(directory: str) -> bool:
    return directory == SCENES and not Path(directory).is_dir()


def split_name(name: str) -> tuple[str, str]:
    """Separate directory and split of `DIR:split`; the split of `DIR` is "test"."""
    if ":" not in name or Path(name).is_dir():
        return name, SPLIT
    directory, _, split = name.rpartition(":")
    return directory, split


def row_numbers(count: int) -> list[str]:
    """Default ids: the row numbers."""
    return list(map(str, range(count)))


def _array(name: str, values: Any) -> np.ndarray:
    """Return vectors as an array; raises `DataError` for no rows or rows of different lengths."""
    try:
        array = as_vectors(values)
    except ValueError:
        raise DataError(
            f"{name}: found vectors of different lengths, expected one length"
        ) from None
    if array.ndim and not len(array):
        raise DataError(f"{name}: found no rows, expected at least one")
    return array


def _checked_ids(ids: Sequence[str] | None, count: int, name: str) -> Sequence[str]:
    if ids is None:
        return row_numbers(count)
    ids = list(map(str, ids))
    if len(ids) != count:
        raise DataError(f"ids: found {len(ids)}, expected {count}, one per row of the {name}")
    return ids


def check_encoder(gallery: str, record: Mapping[str, Any] | None, own: Any, run: str) -> None:
    """Check that a directory was encoded like the training data of a run, if both record it.

    Args:
      gallery: name of its features.
      record: its `dataset.json`; None without.
      own: the encoder in the `dataset.json` of the run; None without.
      run: name of the run.

    Raises:
      DataError: the model of the pictures differs.
    """
    found = record and record["encoder"] and record["encoder"].get("images")
    expected = own and own.get("images")
    if found and expected and _identity(found) != _identity(expected):
        raise DataError(
            f"{gallery}: found pictures encoded by {found['model']}, expected the encoder of "
            f"{run}, {expected['model']}"
        )


def _identity(described: Mapping[str, Any]) -> Any:
    """Return the part of an encoder's description that determines the features."""
    if described.get("kind") == PIXELS:
        return {name: value for name, value in described.items() if name != "model"}
    return described["weights"]


def encode_texts(encoder: Mapping[str, Any], texts: Sequence[str], run: str) -> RegionFeatures:
    """Encode captions by the encoder that made the training captions of a run.

    Raises:
      DataError: there is no such encoder for captions, or its weights have changed.
      L2RMError: the encoder cannot be loaded.
    """
    if encoder.get("captions") is None:
        raise DataError(f"captions: found text, expected vectors, for {run}", hint=WITH_ENCODER)
    made = _load(encoder, "captions", "tokens", run)
    vectors, lengths = made.encode_captions(list(texts))
    return RegionFeatures.from_array(vectors, "captions", lengths, vector="word")


def encode_pictures(
    encoder: Mapping[str, Any] | None, pictures: Sequence[Any], run: str
) -> RegionFeatures:
    """Encode pictures by the encoder that made the training features of a run.

    Args:
      encoder: the encoder in the `dataset.json` of the run; None if it was trained on features
        from elsewhere.
      pictures: Pillow pictures, or names of files.
      run: name of the run.

    Raises:
      DataError: there is no such encoder, its weights have changed, or pictures are unreadable.
      L2RMError: the encoder cannot be loaded.
    """
    if not (encoder and encoder.get("images")):
        raise DataError(
            f"images: found pictures, expected features, as {run} has no record of its encoder"
        )
    upright = upright_pictures(pictures)  # before an encoder is loaded
    made = _load(encoder, "images", "patches", run)
    return RegionFeatures.from_array(made.encode_images(upright), "images")


def _load(encoder: Mapping[str, Any], side: str, in_tokens: str, run: str) -> Encoder:
    """Load the encoder of a run, and check that the weights of a side are still the same.

    `in_tokens` is the kind of features of this side if the import was made with tokens.
    """
    from l2rm_jax.run.choose_encoder import make_encoder

    known = encoder[side]
    made = make_encoder(encoder["name"], "patches" if known["kind"] == in_tokens else None)
    now = made.describe()[side]
    if now["weights"] != known["weights"]:
        raise DataError(
            f"{run}: found changed weights of {now['model']}, expected the weights that encoded "
            f"its {side}"
        )
    return made
