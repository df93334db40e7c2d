"""Mismatched pairs: which image each training caption is stored with.

Two protocols exist, and numbers obtained under them do not compare. At rate 0.6, 40% of the images
keep a right caption under the first and 92% under the second.

* `image` (RCL, DECL, L2RM): some images are permuted; all captions of an image move together.
* `caption` (NCR, BiCro): the image assignments of some captions are permuted.

A third, `semi_paired` (RCSL), permutes all images but a few, and says which those are.
"""

import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from l2rm_jax.data.files import open_array, replace_file
from l2rm_jax.errors import ConfigError, DataError

SEMI_PAIRED = "semi_paired"
PROTOCOLS = ("image", "caption", SEMI_PAIRED)


@dataclass(frozen=True)
class Mismatch:
    """The image that each caption is stored with, and how it came about.

    Attributes:
      protocol: one of `PROTOCOLS`.
      rate_asked: the share that was permuted; None when the index was read from a file.
      seed: of the generated permutation; None when the index was read from a file.
      source: "generated", or the path of the file.
      stored_image: [captions] row of the stored image.
      image_count: number of images.
      true_rate: share of captions whose stored image is not their own (a permutation may leave
          some in place, so this is counted).
      kept_share: share of images that keep at least one of their own captions.
      filtered: what a row says of a filter that drops pairs from training; empty without one.
      unpaired: [images] which images are known to be stored with captions at random; None where
          nothing is known.
    """

    protocol: str
    rate_asked: float | None
    seed: int | None
    source: str
    stored_image: Int[np.ndarray, " captions"]
    image_count: int
    true_rate: float
    kept_share: float
    filtered: Mapping[str, object] = dataclasses.field(default_factory=dict)
    unpaired: Bool[np.ndarray, " images"] | None = None

    def row(self) -> dict[str, object]:
        """What a log line or a result row says about the mismatch."""
        return {
            "protocol": self.protocol,
            "rate_asked": self.rate_asked,
            "true_rate": self.true_rate,
            "kept_share": self.kept_share,
            "mismatch_source": self.source,
            **self.filtered,
        }

    def __str__(self) -> str:
        row = self.row().items()
        return ", ".join(f"{k} {x:.4g}" if isinstance(x, float) else f"{k} {x}" for k, x in row)


def label(config: Any) -> str:
    """`image0.4`, `semi_paired500`: the `mismatch` part of a config in a word."""
    amount = config.paired_images if config.protocol == SEMI_PAIRED else config.rate
    return f"{config.protocol}{amount:g}"


def check_settings(protocol: str, rate: float, seed: int, paired_images: int = 0) -> None:
    """Raises `ConfigError` for an unknown protocol, a rate or a seed out of range, and images that
    are to stay paired under another protocol than `semi_paired`: for all of these at once."""
    wrong = []
    if protocol not in PROTOCOLS:
        wrong.append(f"mismatch.protocol is {protocol!r}, expected one of {PROTOCOLS}")
    elif (protocol == SEMI_PAIRED) != (paired_images > 0):
        expected = "at least 1" if protocol == SEMI_PAIRED else "0"
        wrong.append(
            f"mismatch.paired_images is {paired_images}, expected {expected} with "
            f"mismatch.protocol={protocol}"
        )
    if not 0 <= rate < 1:
        wrong.append(f"mismatch.rate is {rate}, expected 0 <= rate < 1")
    if seed < 0:
        wrong.append(f"mismatch.seed is {seed}, expected 0 or more")
    if wrong:
        raise ConfigError(*wrong)


def generate(
    protocol: str,
    rate: float,
    seed: int,
    caption_image: Int[np.ndarray, " captions"],
    image_count: int,
    paired_images: int = 0,
) -> Mismatch:
    """Permute a share of the images, or of the captions' image assignments.

    Args:
      protocol: one of `PROTOCOLS`.
      rate: the share, in [0, 1); 0 leaves every pair matched. Of no effect under `semi_paired`.
      seed: of the permutation, 0 or more.
      caption_image: [captions] row of each caption's own image.
      image_count: number of images.
      paired_images: how many of them stay in place under `semi_paired`, else 0.

    Raises:
      ConfigError: unknown protocol, or a rate, a seed or a number of images out of range.
    """
    check_settings(protocol, rate, seed, paired_images)
    rng = np.random.default_rng(seed)
    if protocol == SEMI_PAIRED:
        return _semi_paired(paired_images, seed, rng, caption_image, image_count)
    if protocol == "image":
        stored = _permute_some(np.arange(image_count), rate, rng)[caption_image]
    else:
        stored = _permute_some(np.asarray(caption_image), rate, rng)
    return _measured(protocol, rate, seed, "generated", stored, caption_image, image_count)


def _semi_paired(
    paired_images: int,
    seed: int,
    rng: np.random.Generator,
    caption_image: np.ndarray,
    image_count: int,
) -> Mismatch:
    if paired_images > image_count:
        raise ConfigError(
            f"mismatch.paired_images is {paired_images}, expected at most {image_count}, the "
            "training images"
        )
    chosen = rng.permutation(image_count)[paired_images:]
    image = np.arange(image_count)
    image[chosen] = rng.permutation(chosen)
    unpaired = np.zeros(image_count, bool)
    unpaired[chosen] = True
    rate, stored = 1 - paired_images / image_count, image[caption_image]
    found = _measured(SEMI_PAIRED, rate, seed, "generated", stored, caption_image, image_count)
    return replace(found, unpaired=unpaired)


def read(
    path: str | Path, caption_image: Int[np.ndarray, " captions"], image_count: int
) -> Mismatch:
    """Read an index file of either published form, told apart by its length.

    Length `image_count`: caption k is stored with image `index[caption_image[k]]`. Length captions:
    with image `index[k]`; where all captions of every image agree, this is the `image` protocol
    written out caption by caption (as L2RM's files are).

    Raises:
      DataError: missing, truncated, wrong rank, dtype or length, or a value out of range.
    """
    captions, index = len(caption_image), open_index(path)
    if len(index) not in (image_count, captions):
        raise DataError(
            f"{path}: found {len(index)} entries, expected {image_count} (one per image) or "
            f"{captions} (one per caption)"
        )
    outside = np.flatnonzero((index < 0) | (index >= image_count))
    if len(outside):
        expected = f"expected 0 to {image_count - 1}"
        raise DataError(*(f"{path}: entry {at} is {index[at]}, {expected}" for at in outside))
    index = index.astype(np.int64)
    stored = index[caption_image] if len(index) == image_count else index
    of_image = np.zeros(image_count, np.int64)
    of_image[caption_image] = stored
    protocol = "image" if np.array_equal(of_image[caption_image], stored) else "caption"
    return _measured(protocol, None, None, str(path), stored, caption_image, image_count)


def open_index(path: str | Path) -> Int[np.ndarray, " entries"]:
    """An index file as it lies, of whichever length.

    Raises:
      DataError: missing, truncated, wrong rank or dtype.
    """
    index = open_array(Path(path))
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise DataError(
            f"{path}: found {index.dtype} {list(index.shape)}, expected one axis of integers"
        )
    return index


def write(mismatch: Mismatch, path: str | Path) -> None:
    """Write the index as int64, one entry per caption."""
    content = io.BytesIO()
    np.save(content, mismatch.stored_image, allow_pickle=False)
    replace_file(Path(path), content.getvalue())


def _permute_some(values: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Permute the values at int(rate * n) random places among themselves; some may stay."""
    chosen = rng.permutation(len(values))[: int(rate * len(values))]
    permuted = values.astype(np.int64)
    permuted[chosen] = permuted[rng.permutation(chosen)]
    return permuted


def _measured(
    protocol: str,
    rate: float | None,
    seed: int | None,
    source: str,
    stored: np.ndarray,
    caption_image: np.ndarray,
    image_count: int,
) -> Mismatch:
    right = stored == caption_image
    return Mismatch(
        protocol=protocol,
        rate_asked=rate,
        seed=seed,
        source=source,
        stored_image=stored,
        image_count=image_count,
        true_rate=float(1 - right.mean()),
        kept_share=len(np.unique(caption_image[right])) / image_count,
    )
