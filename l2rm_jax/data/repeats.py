"""Feature files with one row per caption, so that each image is repeated five times.

Some releases of precomputed features have this form.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.errors import DataError

REPEATS = 5  # rows of one image
_SAMPLED_BLOCKS = 64  # blocks that are compared in full to detect repeats


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
