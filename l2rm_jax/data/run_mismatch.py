"""Check, make or read the mismatch that the config of a run requests."""

from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.data import mismatch
from l2rm_jax.data.mismatch import Mismatch
from l2rm_jax.data.stored import StoredSplit
from l2rm_jax.errors import ConfigError, DataError

INDEX_FILE = "mismatch_index.npy"  # of a work directory


def check_mismatch(config: Any) -> None:
    """Check the mismatch settings as far as possible without the training pairs."""
    if config.paired_file:
        _check_paired_file(config)
    elif not config.file:
        mismatch.check_settings(config.protocol, config.rate, config.seed, config.paired_images)
    elif config.paired_images or config.protocol == mismatch.SEMI_PAIRED:
        raise ConfigError(
            f"mismatch.file cannot be combined with mismatch.paired_images={config.paired_images} "
            f"and mismatch.protocol={config.protocol}: an index does not say which images are "
            "paired; use 0 and image or caption"
        )
    else:
        mismatch.open_index(config.file)


def _check_paired_file(config: Any) -> None:
    found = (config.protocol, config.paired_images, config.file)
    if found != (mismatch.SEMI_PAIRED, 0, ""):
        raise ConfigError(
            f"mismatch.paired_file requires mismatch.protocol={mismatch.SEMI_PAIRED}, "
            "mismatch.paired_images=0 and no mismatch.file; found "
            f"{config.protocol}, {config.paired_images} and {config.file!r}"
        )
    mismatch.open_index(config.paired_file)


def run_mismatch(config: Any, train: StoredSplit, workdir: Path | None) -> Mismatch:
    """Make the mismatch of the config; it must equal the mismatch in `workdir`, if any."""
    if config.paired_file:
        asked = mismatch.read_known(config.paired_file, train.caption_image, len(train.images))
    elif config.file:
        asked = mismatch.read(config.file, train.caption_image, len(train.images))
    else:
        asked = mismatch.generate(
            config.protocol,
            config.rate,
            config.seed,
            train.caption_image,
            len(train.images),
            config.paired_images,
        )
    if workdir is None or not (workdir / INDEX_FILE).exists():
        return asked
    own_file = workdir / INDEX_FILE
    own = mismatch.read(own_file, train.caption_image, len(train.images))
    if not np.array_equal(own.stored_image, asked.stored_image):
        raise DataError(
            f"{own_file}: found this run's mismatch with a true rate of {own.true_rate:.4f}, "
            f"expected the mismatch of the config ({asked.source}) with {asked.true_rate:.4f}. "
            "The run's mismatch is never overwritten: use another workdir or the run's settings"
        )
    return asked
