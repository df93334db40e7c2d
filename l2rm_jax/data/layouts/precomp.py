"""The layout of SCAN and NCR: `{split}_ims.npy` and `{split}_caps.txt`, before tokenization."""

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.captions import (
    caption_files,
    open_captions,
    parse_captions,
    read_caption_ids,
    read_image_ids,
)
from l2rm_jax.data.contents import checked_rows
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.files import check_entries, check_form, open_array
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.record import check_files, is_undivided
from l2rm_jax.data.shards import have_vectors
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import ConfigError, DataError, Problems, expand_home, nearest_flag
from l2rm_jax.jobs.regular_files import has_file

StoredImages = RegionFeatures | Pixels
REPEATS = 5  # rows of one image, in releases whose features have one row per caption
_SAMPLED_BLOCKS = 64  # blocks that are compared in full to detect repeats


def read_files(
    path: str | Path, split: str, in_words: bool = False, in_pixels: bool = False
) -> Pairs:
    """Open a split in the layout of SCAN and NCR: `{split}_ims.npy` and its captions.

    Captions are `{split}_caps.npy` (vectors), if that file exists, else `{split}_caps.txt` or
    `.tsv`. If both exist, the text is kept for display. `{split}_pairs.npy`, if it exists, has the
    image row of each caption; without it, all images have the same number of captions.

    Args:
      path: directory of the files.
      split: "train", "dev", "test", "testall".
      in_words: ignore caption vectors.
      in_pixels: read `{split}_pixels.npy` instead of the features.

    Raises:
      DataError, ConfigError: as `open_split`; lists every problem of the split's files.
    """
    problems = Problems()
    attempt = problems.attempt
    directory = check_directory(path)
    _check_split(directory, split)
    check_files(directory, split)
    images = attempt(read_images, directory, split, in_pixels)
    vector_file, vectors = split_file(directory, split, "vectors"), None
    if vector_file.exists() and not in_words:
        vectors = attempt(RegionFeatures.read, vector_file)
    if vectors is not None and not caption_files(directory, split):
        source, texts, count = vector_file, None, len(vectors)
    else:
        found = attempt(open_captions, directory, split, or_vectors=not in_words)
        source, lines = found or (None, None)
        texts, count = attempt(parse_captions, source, lines), lines and len(lines)
    if vectors is not None and texts is not None:
        attempt(_check_vector_count, source, texts, vectors)
    pair_file = split_file(directory, split, "image_of")
    if pair_file.exists():
        image_of = attempt(_read_pairs, source, images, captions=count, path=pair_file)
    else:
        images = attempt(_described_images, source, images, captions=count)
        image_of = attempt(checked_rows, images and len(images), count, image_of=None)
    ids = attempt(read_image_ids, directory, split, images and len(images))
    problems.raise_all()
    caption_ids = read_caption_ids(directory, split)
    name = str(directory)
    return Pairs(images, vectors, image_of, texts, ids, caption_ids, split=split, name=name)


def read_images(
    directory: str | Path, split: str, in_pixels: bool, clip_counts: bool = False
) -> StoredImages:
    """Open the features of a split, or its pictures; `clip_counts` as in `RegionFeatures.read`.

    Raises:
      DataError: the file is missing or invalid.
    """
    _check_split(directory, split)
    features, pixels = (split_file(directory, split, kind) for kind in ("features", "pixels"))
    wanted, other = (pixels, features) if in_pixels else (features, pixels)
    if other.exists() and not wanted.exists():
        needs = "pictures (l2rm import --encoder=pixels:DIR)" if in_pixels else "features"
        raise DataError(
            f"{wanted}: found only {other.name}, expected {needs}",
            hint=None if in_pixels else "--pretrained=DIR of a model that encodes pictures",
        )
    if in_pixels:
        return Pixels.read(pixels)
    return RegionFeatures.read(features, clip_counts=clip_counts)


def has_pixels(directory: str | Path) -> bool:
    """Return whether a directory has pictures to train on."""
    return has_file(split_file(directory, "train", "pixels"))


def has_images(directory: str | Path, split: str) -> bool:
    """Return whether a split has features, or no pictures that could replace them."""
    features, pixels = (split_file(directory, split, kind) for kind in ("features", "pixels"))
    return has_file(features) or not has_file(pixels)


def check_directory(path: str | Path, or_shards: bool = False) -> Path:
    """Return the directory of the data.

    Raises:
      ConfigError: `path` is empty.
      DataError: there is no such directory, or it has vectors in shards without `or_shards`.
    """
    expected = (
        "expected the directory of train_ims.npy, train_caps.txt (or .tsv, .npy), dev and test"
    )
    if not path:
        raise ConfigError(f"data.path: empty; {expected}", hint="--data=DIR")
    path = Path(expand_home(path))
    if path.is_file():
        raise DataError(f"{path}: found a file; {expected}", hint=_import_command(path))
    if not path.is_dir():
        raise DataError(f"{path}: no such directory; {expected}", hint=nearest_flag("data", path))
    if not or_shards and have_vectors(path):
        raise DataError(
            f"{path}: found vectors in shards; {expected}",
            hint=f"l2rm import --source={shlex.quote(str(path))} --out=DATA",
        )
    return path


def _import_command(file: Path) -> str:
    """The command that makes data of a table, or of an array of vectors."""
    name = shlex.quote(str(file))
    if file.suffix == ".npy":
        return f"l2rm import --image_vectors={name} --caption_vectors=FILE.npy --out=DATA"
    encoder = "transformers:openai/clip-vit-base-patch32"
    return f"l2rm import --source={name} --encoder={encoder} --out=DATA"


def _check_split(directory: str | Path, split: str) -> None:
    """Check that `split` is the single split of data that were imported without `--split`.

    Raises:
      DataError: `split` is another one.
    """
    if split != "train" and is_undivided(directory):
        raise DataError(
            f"{directory}:{split}: found the single split train, as the data were imported without "
            f"--split; import them with --split, such as --split=0.8,0.1,0.1, or use "
            f"{directory}:train, all of them"
        )


def _check_vector_count(source: Path, texts: list[str], vectors: RegionFeatures) -> None:
    if len(texts) != len(vectors):
        raise DataError(
            f"{source}: found {len(texts)} captions for the {len(vectors)} rows of "
            f"{vectors.name}, expected one per row"
        )


def _described_images(source: Path, images: StoredImages, captions: int) -> StoredImages:
    """Return the images that the captions describe, each once."""
    # Rows may repeat an image if there is one caption per row, but not with a .tsv: that format has
    # one caption per image. Pictures are never repeated: no published files have them.
    may_repeat = captions == len(images) and source.suffix != ".tsv"
    if may_repeat and isinstance(images, RegionFeatures):
        return undo_repeats(images)
    if captions % len(images):
        raise DataError(
            f"{source}: found {captions} captions for the {len(images)} images of "
            f"{images.name}, expected a multiple of the number of images"
        )
    return images


def _read_pairs(
    source: Path, images: StoredImages, captions: int, path: Path
) -> Int[np.ndarray, " pairs"]:
    """Read the image row of each caption from `{split}_pairs.npy`.

    Raises:
      DataError: the file does not have one integer per caption, a row is out of range or smaller
        than the previous one, or an image has no caption; lists every such entry or image.
    """
    rows = open_array(path)
    is_index = rows.dtype.kind in "iu" and rows.shape == (captions,)
    expected = f"integers [{captions}], the image row of each caption of {source}"
    check_form(path, rows, is_index, expected)
    expected = f"0 to {len(images) - 1}, a row of {images.name}"
    check_entries(path, rows, (rows >= 0) & (rows < len(images)), expected)
    rows = rows.astype(np.int64)
    falls = np.flatnonzero(np.diff(rows) < 0) + 1
    if len(falls):
        expected = "expected ascending rows"
        raise DataError(
            *(
                f"{path}: entry {at}: found {rows[at]} after {rows[at - 1]}, {expected}"
                for at in falls
            )
        )
    absent = np.flatnonzero(np.bincount(rows, minlength=len(images)) == 0)
    if len(absent):
        expected = f"expected every row of {images.name}"
        raise DataError(*(f"{path}: found no row {row}, {expected}" for row in absent))
    return rows


def undo_repeats(features: RegionFeatures) -> RegionFeatures:
    """Remove repeats of images; features without repeats are returned unchanged.

    A file counts as repeated if most of a sample of its blocks hold five identical rows. Then the
    first region of every block is compared too.

    Raises:
      DataError: most blocks hold repeated images but some do not, or the rows of one image have
        different region counts; lists every such block.
    """
    count, rest = divmod(len(features), REPEATS)
    if rest:
        return features
    blocks = [features.array[start : start + REPEATS] for start in range(0, len(features), REPEATS)]
    sample = np.unique(np.linspace(0, count - 1, min(count, _SAMPLED_BLOCKS)).astype(int))
    counts = features.counts.reshape(count, REPEATS)
    same = [_rows_are_identical(blocks[block][:, : counts[block].min()]) for block in sample]
    if 2 * sum(same) <= len(same):
        return features
    different = [block for block, ok in zip(sample, same, strict=True) if not ok]
    different += [at for at, block in enumerate(blocks) if not _rows_are_identical(block[:, 0])]
    raise_if_blocks_differ(features.name, different)
    uneven = np.flatnonzero((counts != counts[:, :1]).any(axis=1))
    if len(uneven):
        raise DataError(
            *(
                f"{features.name}: rows {block * REPEATS} to {(block + 1) * REPEATS - 1}: found "
                f"{counts[block].tolist()} regions for one repeated image, expected a single number"
                for block in uneven
            )
        )
    logging.getLogger(__name__).info(
        "%s: each image is stored %d times; read as %d images", features.name, REPEATS, count
    )
    return replace(features.take(np.arange(0, len(features), REPEATS)), copies=REPEATS)


def raise_if_blocks_differ(name: str, blocks: Sequence[int]) -> None:
    """Raise an error if some blocks do not repeat one image although most do.

    Raises:
      DataError: `blocks` is not empty; lists the rows of each.
    """
    if len(blocks):
        raise DataError(
            *(
                f"{name}: rows {block * REPEATS} to {(block + 1) * REPEATS - 1}: found different "
                f"images, expected a repeated image, as in most blocks of {REPEATS} rows"
                for block in sorted(set(blocks))
            )
        )


def _rows_are_identical(rows: np.ndarray) -> bool:
    """Whether all rows have the same bytes; NaN equals NaN."""
    stored = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    return bool((stored[1:] == stored[0]).all())
