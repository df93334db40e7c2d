"""Preprocessing of a vision transformer's pictures, from its `preprocessor_config.json`.

A file leaves out fields that have the default of Hugging Face's transformers, so this file repeats
these defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from l2rm_jax.errors import DataError

FILTERS = range(6)  # numbers of Pillow's filters for resizing
_BICUBIC, _CROP = 3, 224
_LONGEST = 4096  # pixels of the short side of a picture before it is cut
_DEFAULTS = {
    "clip": {
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
    "siglip": {
        "size": {"height": 224, "width": 224},
        "do_center_crop": False,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
}
_STEPS = ("do_resize", "do_rescale", "do_normalize")  # all are required


@dataclass(frozen=True)
class Preparation:
    """Conversion of a picture to a square of pixels, and of pixels to numbers.

    Attributes:
      image_size: S, height and width of the square in pixels.
      short_side: length in pixels that the short side is resized to before the square is cut from
        the centre; 0 resizes both sides to S, whatever the shape.
      resample: number of Pillow's filter for resizing.
      mean: of each channel, in the range 0 to 1 of a pixel's value divided by 255.
      std: likewise; a number is (value / 255 - mean) / std.
    """

    image_size: int
    short_side: int
    resample: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def resizing(self) -> dict[str, int]:
        """Settings that determine the pixels, as JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in ("mean", "std")}


def prepare(
    pictures: Sequence[Image.Image], preparation: Preparation
) -> UInt8[np.ndarray, "n S S 3"]:
    """Resize upright RGB pictures, and cut a model's input square out of the centre of each.

    The pixels equal the output of the image processors in Hugging Face's transformers.
    """
    return np.stack([_square(picture, preparation) for picture in pictures])


def _square(picture: Image.Image, preparation: Preparation) -> UInt8[np.ndarray, "S S 3"]:
    side, short = preparation.image_size, preparation.short_side
    width, height = picture.size
    if not short:
        return np.asarray(picture.resize((side, side), preparation.resample), np.uint8)
    scale = short / min(width, height)
    size = tuple(short if x == min(width, height) else int(scale * x) for x in (width, height))
    pixels = np.asarray(picture.resize(size, preparation.resample), np.uint8)
    top, left = ((length - side) // 2 for length in pixels.shape[:2])
    return pixels[top : top + side, left : left + side]


def read_preparation(settings: Mapping[str, Any], kind: str, image_size: int) -> Preparation:
    """Read a parsed preprocessor_config.json.

    Args:
      settings: the object in the file.
      kind: the `model_type` of the vision transformer.
      image_size: height and width of its pictures.

    Raises:
      DataError: fields request steps that are not supported, are not valid numbers, or give
        pictures of another size than the model expects; the message lists all of them.
    """
    settings = {**_DEFAULTS[kind], **settings}
    problems = [
        f"{step}: found {settings[step]!r}, expected true"
        for step in _STEPS
        if settings.get(step, True) is not True
    ]
    factor = settings.get("rescale_factor", 1 / 255)
    if not is_number(factor) or abs(255 * factor - 1) > 1e-4:
        problems.append(f"rescale_factor: found {factor!r}, expected 1/255")
    resample = settings.get("resample", _BICUBIC)
    if type(resample) is not int or resample not in FILTERS:
        problems.append(f"resample: found {resample!r}, expected one of Pillow's filters, 0 to 5")
    mean, std = (_channels(settings, name, problems) for name in ("image_mean", "image_std"))
    if min(std) <= 0:
        problems.append(f"image_std: found {list(std)}, expected numbers above 0")
    short_side = _short_side(settings, kind, image_size, problems)
    if problems:
        raise DataError(*problems)
    return Preparation(image_size, short_side, resample, mean, std)


def _short_side(settings: Mapping[str, Any], kind: str, side: int, problems: list[str]) -> int:
    """`Preparation.short_side`; what does not lead to pictures of the model's size is a problem."""
    size = settings["size"]
    if type(size) is int:  # as older versions wrote it
        size = {"shortest_edge": size} if kind == "clip" else {"height": size, "width": size}
    square = {"height": side, "width": side}
    if size == square:
        return 0
    crops = settings["do_center_crop"] is True
    crop = settings.get("crop_size", _CROP)
    is_cut = crops and crop in (side, square)
    short = size.get("shortest_edge") if isinstance(size, Mapping) and len(size) == 1 else None
    if type(short) is int and side <= short <= max(side, _LONGEST) and is_cut:
        return short
    cut = f"crop_size {crop!r}" if crops else "without do_center_crop"
    problems.append(
        f"size: found {size!r} {cut}, expected pictures of {side} x {side} pixels for this model"
    )
    return 0


def _channels(
    settings: Mapping[str, Any], name: str, problems: list[str]
) -> tuple[float, float, float]:
    values = settings[name]
    if isinstance(values, list) and len(values) == 3 and all(map(is_number, values)):
        return tuple(map(float, values))
    problems.append(f"{name}: found {values!r}, expected three numbers")
    return (1.0, 1.0, 1.0)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
