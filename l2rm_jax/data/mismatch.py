"""Mismatched pairs: the image that each training caption is stored with.

Three protocols mismatch a data set deliberately:

* `image` (RCL, DECL, L2RM) permutes some images; all captions of an image move together.
* `caption` (NCR, BiCro) permutes the images of some captions, caption by caption.
* `semi_paired` (RCSL) permutes all images except a few, and the method knows which were kept.
  Alternatively, a file lists the pairs that are known to be matched, and nothing is permuted.

Results under different protocols cannot be compared. With five captions per image and a rate of
0.6, 40% of the images keep at least one matched caption under `image`, but 92% under `caption`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Integer

from l2rm_jax.data.drawn_splits import Drawn
from l2rm_jax.data.files import check_entries, check_form, open_array
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import ConfigError, DataError

SEMI_PAIRED = "semi_paired"
PROTOCOLS = ("image", "caption", SEMI_PAIRED)
INDEX_FILE = "mismatch_index.npy"  # of a work directory


@dataclass(frozen=True)
class Mismatch:
    """Index of the image that each caption is stored with, and its source.

    Attributes:
      protocol: one of `PROTOCOLS`.
      source: "generated", or the path of the index file.
      stored_image: [captions] row of the image that each caption is stored with.
      image_count: number of images.
      true_rate: counted share of captions that are stored with another image than their own; a
        permutation may leave some in place.
      kept_share: share of images that keep at least one of their own captions.
      rate_asked: share of images or captions that was permuted; None if read from a file.
      filtered: results fields of the filter that drops training pairs; empty without a filter.
      known: [captions] True for pairs that are known to be matched; a method trusts only these.
        None if no pairs are known, and a method may trust all.
    """

    protocol: str
    source: str
    stored_image: Int[np.ndarray, " captions"]
    image_count: int
    true_rate: float
    kept_share: float
    rate_asked: float | None = None
    filtered: Mapping[str, object] = field(default_factory=dict)
    known: Bool[np.ndarray, " captions"] | None = None

    def row(self) -> dict[str, object]:
        """Fields of a results row that describe the mismatch and the filter.

        Where no pair was mismatched deliberately, the true rate is unknown, so it is left out.
        """
        known = {"true_rate": self.true_rate, "kept_share": self.kept_share}
        return {
            "protocol": self.protocol,
            "rate_asked": self.rate_asked,
            **(known if self.true_rate else {}),
            "mismatch_source": self.source,
            **self.filtered,
        }

    def sentences(self) -> list[str]:
        """Describe the changes to the pairs before training; empty without changes."""
        pairs = len(self.stored_image)
        mismatched = round(self.true_rate * pairs)
        lines = []
        if self.known is not None and self.rate_asked is None:
            known = np.count_nonzero(self.known)
            lines.append(
                f"{known:,} of your {pairs:,} pairs are known to be matched ({self.source}); the "
                "others count as unpaired"
            )
        if mismatched:
            lines.append(f"{mismatched:,} of your {pairs:,} pairs {self._origin()}")
        if self.filtered:
            kept = round(self.filtered["filter_kept"] * pairs)
            name = self.filtered["filter"]
            lines.append(f"the filter {name} keeps {kept:,} of the {pairs:,} pairs")
        return lines

    def _origin(self) -> str:
        """Describe the source of the mismatch, as the end of a sentence about the pairs."""
        if self.rate_asked is None:
            return f"are mismatched by the index file {self.source} (protocol {self.protocol})"
        amount = f"rate {self.rate_asked:g}"
        if self.known is not None:
            amount = f"{len(np.unique(self.stored_image[self.known])):,} images kept"
        return f"were mismatched deliberately (protocol {self.protocol}, {amount})"

    def __str__(self) -> str:
        fields = self.row().items()
        return ", ".join(f"{k} {x:.4g}" if isinstance(x, float) else f"{k} {x}" for k, x in fields)


def label(config: Any) -> str:
    """Short name of the `mismatch` part of a config, such as `image0.4` or `semi_paired500`."""
    amount = config.paired_images if config.protocol == SEMI_PAIRED else config.rate
    return f"{config.protocol}{amount:g}"


def check_settings(protocol: str, rate: float, seed: int, paired_images: int = 0) -> None:
    """Check the settings that generate a mismatch.

    Raises:
      ConfigError: an unknown protocol, a rate or seed out of range, or paired images without
        `semi_paired` (or none with it); lists every problem.
    """
    wrong = []
    if protocol not in PROTOCOLS:
        wrong.append(f"mismatch.protocol: found {protocol!r}, expected one of {PROTOCOLS}")
    elif (protocol == SEMI_PAIRED) != (paired_images > 0):
        expected = "at least 1" if protocol == SEMI_PAIRED else "0"
        wrong.append(
            f"mismatch.paired_images: found {paired_images}, expected {expected} with "
            f"mismatch.protocol={protocol}"
        )
    if not 0 <= rate < 1:
        wrong.append(f"mismatch.rate: found {rate}, expected 0 <= rate < 1")
    if seed < 0:
        wrong.append(f"mismatch.seed: found {seed}, expected 0 or more")
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
    """Generate a mismatch by permuting images, or the images of captions.

    Args:
      protocol: one of `PROTOCOLS`.
      rate: share that is permuted, in [0, 1); 0 leaves every pair matched. `semi_paired` ignores
        it.
      seed: seed of the permutation, 0 or more.
      caption_image: [captions] row of each caption's own image.
      image_count: number of images.
      paired_images: number of images that keep their captions under `semi_paired`, else 0.

    Raises:
      ConfigError: an unknown protocol, or a rate, seed or number of images out of range.
    """
    check_settings(protocol, rate, seed, paired_images)
    rng = np.random.default_rng(seed)
    known = None
    if protocol == SEMI_PAIRED:
        if paired_images > image_count:
            raise ConfigError(
                f"mismatch.paired_images: found {paired_images}, expected at most {image_count}, "
                "the number of training images"
            )
        image, chosen = np.arange(image_count), rng.permutation(image_count)[paired_images:]
        image[chosen] = rng.permutation(chosen)
        stored, known = image[caption_image], ~np.isin(caption_image, chosen)
        rate = 1 - paired_images / image_count
    elif protocol == "image":
        stored = _permute_some(np.arange(image_count), rate, rng)[caption_image]
    else:
        stored = _permute_some(np.asarray(caption_image), rate, rng)
    about = {"protocol": protocol, "source": "generated", "rate_asked": rate, "known": known}
    return _count_rates(stored, caption_image, image_count, **about)


def read(
    path: str | Path, caption_image: Int[np.ndarray, " captions"], image_count: int
) -> Mismatch:
    """Read a mismatch index file in either of the published formats.

    The length of the index determines the format:

    * One entry per image: caption k is stored with image `index[caption_image[k]]`.
    * One entry per caption: caption k is stored with image `index[k]`. If all captions of every
      image agree, the protocol is `image`, written caption by caption as in L2RM's files.

    Raises:
      DataError: the file is missing or truncated, or has a wrong rank, dtype or length, or a value
        out of range.
    """
    captions, index = len(caption_image), open_index(path)
    if len(index) not in (image_count, captions):
        raise DataError(
            f"{path}: found {len(index)} entries, expected {image_count} (one per image) or "
            f"{captions} (one per caption)"
        )
    check_entries(path, index, (index >= 0) & (index < image_count), f"0 to {image_count - 1}")
    index = index.astype(np.int64)
    stored = index[caption_image] if len(index) == image_count else index
    image_of_last_caption = np.zeros(image_count, np.int64)
    image_of_last_caption[caption_image] = stored
    captions_agree = np.array_equal(image_of_last_caption[caption_image], stored)
    protocol = "image" if captions_agree else "caption"
    about = {"protocol": protocol, "source": str(path)}
    return _count_rates(stored, caption_image, image_count, **about)


def read_known(
    path: str | Path,
    caption_image: Int[np.ndarray, " captions"],
    image_count: int,
    drawn: Drawn | None = None,
) -> Mismatch:
    """Read the pairs that are known to be matched; all captions keep their own image.

    Args:
      path: a `.npy` file with the rows of these pairs.
      caption_image: [captions] row of each caption's own image.
      image_count: number of images.
      drawn: the splits that the run draws from data with a single split, whose rows the file has.

    Raises:
      DataError: the file is missing or truncated, has a wrong rank or dtype, or a row out of range.
    """
    rows = open_index(path)
    captions = len(caption_image) if drawn is None else len(drawn.whole)
    check_entries(path, rows, (rows >= 0) & (rows < captions), f"0 to {captions - 1}")
    stored = np.asarray(caption_image)
    known = np.zeros(captions, bool)
    known[rows] = True
    known = known if drawn is None else known[drawn.rows]
    about = {"protocol": SEMI_PAIRED, "source": str(path), "known": known}
    return _count_rates(stored, caption_image, image_count, **about)


def open_index(path: str | Path) -> Integer[np.ndarray, " entries"]:
    """Open an index file without checking its length and its values.

    Raises:
      DataError: the file is missing or truncated, or has a wrong rank or dtype.
    """
    index = open_array(Path(path))
    check_form(path, index, index.ndim == 1 and index.dtype.kind in "iu", "one axis of integers")
    return index


def check_mismatch(config: Any) -> None:
    """Check the mismatch settings as far as possible without the training pairs."""
    if config.paired_file:
        if (config.protocol, config.paired_images, config.file) != (SEMI_PAIRED, 0, ""):
            raise ConfigError(
                f"mismatch.paired_file requires mismatch.protocol={SEMI_PAIRED}, "
                "mismatch.paired_images=0 and no mismatch.file; found "
                f"{config.protocol}, {config.paired_images} and {config.file!r}"
            )
        open_index(config.paired_file)
    elif not config.file:
        check_settings(config.protocol, config.rate, config.seed, config.paired_images)
    elif config.paired_images or config.protocol == SEMI_PAIRED:
        raise ConfigError(
            f"mismatch.file cannot be combined with mismatch.paired_images={config.paired_images} "
            f"and mismatch.protocol={config.protocol}: an index does not say which images are "
            "paired; use 0 and image or caption"
        )
    else:
        open_index(config.file)


def run_mismatch(
    config: Any, train: Pairs, workdir: Path | None, drawn: Drawn | None = None
) -> Mismatch:
    """Make the mismatch of the config; it must equal the mismatch in `workdir`, if any.

    `drawn` as in `read_known`.
    """
    pairs = train.image_of, len(train.images)
    if config.paired_file:
        asked = read_known(config.paired_file, *pairs, drawn)
    elif config.file:
        asked = read(config.file, *pairs)
    else:
        asked = generate(config.protocol, config.rate, config.seed, *pairs, config.paired_images)
    if workdir is None or not (workdir / INDEX_FILE).exists():
        return asked
    own_file = workdir / INDEX_FILE
    own = read(own_file, *pairs)
    if not np.array_equal(own.stored_image, asked.stored_image):
        raise DataError(
            f"{own_file}: found this run's mismatch with a true rate of {own.true_rate:.4f}, "
            f"expected the mismatch of the config ({asked.source}) with {asked.true_rate:.4f}. "
            "The run's mismatch is never overwritten: use another workdir or the run's settings"
        )
    return asked


def _permute_some(values: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Permute int(rate * n) randomly chosen values among themselves; some may stay in place."""
    chosen = rng.permutation(len(values))[: int(rate * len(values))]
    permuted = values.astype(np.int64)
    permuted[chosen] = permuted[rng.permutation(chosen)]
    return permuted


def _count_rates(
    stored: np.ndarray, caption_image: np.ndarray, image_count: int, **about: Any
) -> Mismatch:
    """Make a `Mismatch` from an index, and count its rates."""
    matched = stored == caption_image
    return Mismatch(
        stored_image=stored,
        image_count=image_count,
        true_rate=float(1 - matched.mean()),
        kept_share=len(np.unique(caption_image[matched])) / image_count,
        **about,
    )
