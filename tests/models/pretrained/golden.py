"""The small random models of `tests/golden/pretrained`, and what PyTorch computes with them."""

import json
from pathlib import Path

import numpy as np

from l2rm_jax.pretrained.arrays import image_places, text_places
from l2rm_jax.pretrained.directory import Pretrained
from l2rm_jax.pretrained.specs import Bases, read_image_base, read_text_base

GOLDEN = Path(__file__).parents[2] / "golden" / "pretrained"
KINDS = ("bert", "clip", "siglip")
NOISE = 3  # as much as float32 of PyTorch itself differs from float64, times this


def read_expected(kind: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / kind / "expected.npz") as arrays:
        return dict(arrays)


def read_bases(kind: str) -> Bases:
    """Both sides of a model, as far as it has them."""
    config = json.loads((GOLDEN / kind / "config.json").read_bytes())
    image = None if kind == "bert" else read_image_base(config)
    return Bases(read_text_base(config, "mean"), image)


def read_parameters(kind: str) -> dict:
    return Pretrained(GOLDEN / kind, read_bases(kind), None).parameters()


def places_of(bases: Bases) -> dict[str, list]:
    places = {"text_base": text_places(bases.text)}
    return places if bases.image is None else {**places, "image_base": image_places(bases.image)}
