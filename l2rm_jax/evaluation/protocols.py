"""Protocols: the test split behind each published table, and the recalls reported on it."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.recall import Counts, describe_counts, fold_chance, fold_recalls


class Protocol(NamedTuple):
    """The test split of a published table, and how its recalls are averaged.

    Attributes:
      images: number of test images; 0 accepts any number.
      captions_per_image: captions of every image; 0 accepts any number.
      folds: the split is cut into this many consecutive, equal parts; the table reports the mean
        of their recalls.
      remedy: hint for the error message: the config field that selects the right split.
    """

    images: int = 0
    captions_per_image: int = 0
    folds: int = 1
    remedy: str = ""


_TESTALL = "set data.test_split=testall for COCO's 5000 test images (test has 1000 of them), or "
_MSRVTT = "the official split has 2990 test videos, other splits have 1000; "
PROTOCOLS = {
    "f30k-1k": Protocol(1000, 5),
    "coco-1k-5fold": Protocol(5000, 5, folds=5, remedy=_TESTALL),
    "coco-5k": Protocol(5000, 5, remedy=_TESTALL),
    "cc152k-1k": Protocol(1000, 1),
    # Captions are not checked, as their number differs between videos. RCL Tab. 1 counts 54,270, or
    # 81 per video: the most that one video has, to which other code pads the rest.
    "msvd": Protocol(670),
    "msrvtt": Protocol(2990, 20, remedy=_MSRVTT),
    "custom": Protocol(),
}


def parse_protocols(names: str) -> list[str]:
    """Split the value of `evaluation.protocol`: one name, or several separated by commas.

    Raises:
      ConfigError: a name is not in `PROTOCOLS`.
    """
    protocols = [name.strip() for name in names.split(",")]
    for name in protocols:
        if name not in PROTOCOLS:
            raise ConfigError(
                f"evaluation.protocol: found {name!r}, expected one of {', '.join(PROTOCOLS)}"
            )
    return protocols


def check_protocols(names: str, images: int, captions_per_image: Counts) -> None:
    """Check that the test split has the size that every named protocol needs.

    Args:
      names: as `parse_protocols` takes them.
      images: number of test images.
      captions_per_image: as `Counts`.

    Raises:
      ConfigError: the split does not fit; the message says how to change it.
    """
    captions = describe_counts(captions_per_image)
    for name in parse_protocols(names):
        protocol = PROTOCOLS[name]
        needed = protocol.images or images, str(protocol.captions_per_image or captions)
        if needed != (images, captions):
            raise ConfigError(
                f"evaluation.protocol: found {images} test images with {captions} "
                f"caption(s) each, expected {needed[0]} with {needed[1]} for {name}; "
                f"{protocol.remedy}"
                "use evaluation.protocol=custom, which accepts any test split"
            )


def recall_rows(
    sims: Float[np.ndarray, "I M"],
    captions_per_image: Counts,
    protocols: str,
    temperature: float = 0.0,
) -> dict[str, dict[str, Any]]:
    """Recalls under each protocol, as rows of the result table.

    Args:
      sims: similarities of all images with all captions of the test split.
      captions_per_image: as `Counts`.
      protocols: as `parse_protocols` takes them.
      temperature: if above 0, each protocol gets a second row, ranked by `dual_softmax` at this
        temperature; its softmax runs over the queries of one fold.

    Returns:
      Row name to the keys of `recalls`. A row is named after its protocol; the name of the second
      row adds the temperature.

    Raises:
      ConfigError: as `check_protocols`.
      ValueError: as `recalls`.
    """
    check_protocols(protocols, len(sims), captions_per_image)
    rows = {}
    for name in parse_protocols(protocols):
        folds = PROTOCOLS[name].folds
        rows[name] = fold_recalls(sims, captions_per_image, folds)
        if temperature:
            row = fold_recalls(sims, captions_per_image, folds, temperature)
            rows[f"{name}, dual softmax {temperature:g}"] = row
    return rows


def chance_rows(
    images: int, captions_per_image: Counts, protocols: str
) -> dict[str, dict[str, float]]:
    """Expected recalls of random rankings, as rows of the result table, one per gallery size."""
    folds = dict.fromkeys(PROTOCOLS[name].folds for name in parse_protocols(protocols))
    if len(folds) == 1:
        return {"chance": fold_chance(images, captions_per_image, *folds)}
    return {
        f"chance, {images // parts} images": fold_chance(images, captions_per_image, parts)
        for parts in folds
    }
