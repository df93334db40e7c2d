"""Feature files that store each image once for each of its five captions."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.errors import DataError

REPEATS = 5  # some releases store each image once for each of its five captions

_SAMPLED_BLOCKS = 64


def undo_repeats(features: RegionFeatures) -> RegionFeatures:
    """See each image once if the file stores blocks of five identical rows, one per caption.

    Whether it does is found by comparing rows: a sample of blocks whole and, if these agree, the
    first region of every block.

    Raises:
      DataError: most blocks are repeated images but some are not, or one image has several region
        counts.
    """
    count, rest = divmod(len(features), REPEATS)
    if rest:
        return features
    blocks = [features.array[start : start + REPEATS] for start in range(0, len(features), REPEATS)]
    sample = np.unique(np.linspace(0, count - 1, min(count, _SAMPLED_BLOCKS)).astype(int))
    counts = features.counts.reshape(count, REPEATS)
    same = [_identical(blocks[block][:, : counts[block].min()]) for block in sample]
    if 2 * sum(same) <= len(same):
        return features
    different = [block for block, ok in zip(sample, same, strict=True) if not ok]
    different += [at for at, block in enumerate(blocks) if not _identical(block[:, 0])]
    refuse_different(features.name, different)
    uneven = np.flatnonzero((counts != counts[:, :1]).any(axis=1))
    if len(uneven):
        raise DataError(
            *(
                f"{features.name}: rows {block * REPEATS} to {(block + 1) * REPEATS - 1} are one "
                f"repeated image with {counts[block].tolist()} regions, expected one number"
                for block in uneven
            )
        )
    logging.getLogger(__name__).info(
        "%s: each image is stored %d times; read as %d images", features.name, REPEATS, count
    )
    return replace(features, stride=REPEATS)


def refuse_different(name: str, blocks: Sequence[int]) -> None:
    """Raises `DataError` if there are blocks whose rows differ among blocks of repeated rows."""
    if len(blocks):
        raise DataError(
            *(
                f"{name}: rows {block * REPEATS} to {(block + 1) * REPEATS - 1} differ while most "
                f"blocks of {REPEATS} rows are one repeated image; expected all or none to be"
                for block in sorted(set(blocks))
            )
        )


def _identical(rows: np.ndarray) -> bool:
    """Whether all rows have the same bytes (so that NaN equals NaN)."""
    stored = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    return bool((stored[1:] == stored[0]).all())
