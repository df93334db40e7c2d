"""Sizes of the tests: runs of equal shapes share their compiled programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax import config as defaults
from l2rm_jax.run.config_file import with_changes

MODEL = {"embed_dim": 8, "word_dim": 6, "sim_dim": 6}
SCENES = {"scenes_train": 20, "scenes_dev": 6, "scenes_test": 10, "max_words": 8}


def tiny_config(
    method: str = "l2rm", head: str = "vse", changes: Mapping[str, Any] | None = None, **train: Any
) -> ConfigDict:
    """A run on 100 captions of one length, clipped at 8 words, with one epoch of warm-up.

    Args:
      method, head: as in a config.
      changes: values of further fields, by their dotted names.
      **train: fields of the section `train`.
    """
    config = defaults.get_config("quick")
    config.method, config.model.head = method, head
    config.model.update(MODEL)
    config.data.update(SCENES)
    config.train.update(batch_size=20, warmup_epochs=1, epochs=2, checkpoint_steps=2, log_steps=3)
    config.train.update(train)
    return with_changes(config, changes or {})


def write_vectors(directory: Path, train: int, dev: int = 6, test: int = 10) -> Path:
    """Write a data set of vectors: five captions an image, which share its hidden cause.

    Judging its pairs takes a tenth of a second, as the linear models have few dimensions.
    """
    directory.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    to_image, to_caption = rng.normal(size=(2, 4, 6))
    for split, images in {"train": train, "dev": dev, "test": test}.items():
        cause = rng.normal(size=(images, 4))
        noise = 0.7 * rng.normal(size=(5 * images, 6))
        np.save(directory / f"{split}_ims.npy", (cause @ to_image).astype(np.float32))
        captions = (cause @ to_caption).repeat(5, axis=0) + noise
        np.save(directory / f"{split}_caps.npy", captions.astype(np.float32))
    return directory
