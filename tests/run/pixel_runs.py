"""Tiny runs on pixels with the small CLIP and SigLIP of `tests/golden/pretrained`."""

from pathlib import Path

import numpy as np
from PIL import Image

from l2rm_jax.data import scenes
from l2rm_jax.data.scenes.drawing import draw
from l2rm_jax.pretrained.directory import open_pretrained
from tests.models.pretrained.golden import GOLDEN
from tests.run.pretrained_runs import bert_config

SIZES = {"train": 12, "dev": 4, "test": 6}
WORDS = 56  # SigLIP pads captions to this length


def pictures(split: str, seed: int = 0) -> list:
    """The pictures of `scenes`, as Pillow has them."""
    return [
        Image.fromarray(draw(each)) for each in scenes.generate(SIZES[split], seed, split).scenes
    ]


def open_model(kind: str = "clip", directory: Path | None = None):
    """Both sides of the small model."""
    return open_pretrained(directory or GOLDEN / kind, kind, kind, max_words=WORDS)


def write_pixels(directory: Path, kind: str = "clip", seed: int = 0) -> Path:
    """Write the pictures of `scenes`, as the model wants them, and their captions."""
    from l2rm_jax.pretrained.preparation import prepare

    directory.mkdir()
    preparation = open_model(kind).bases.image.preparation
    for split, images in SIZES.items():
        made = scenes.generate(images, seed, split)
        pixels = prepare(pictures(split, seed), preparation)
        np.save(directory / f"{split}_pixels.npy", pixels)
        (directory / f"{split}_caps.txt").write_text("\n".join(made.captions) + "\n")
    return directory


def clip_config(data: Path, directory: Path | None = None, kind: str = "clip", **fields):
    """Config of a tiny run on pixels, with both sides of the model."""
    settings = {
        "data__name": "mine",
        "data__path": str(data),
        "data__max_words": WORDS,
        "model__image_encoder": kind,
        "train__batch_size": 10,
    }
    return bert_config(directory, kind, **{**settings, **fields})
