"""RCSL Tab. 6 on the built-in data: regulariser, loss of the known pairs, mined texts and images.

A fifth of the training images is paired, unless `mismatch.paired_images` says how many.
"""

from ml_collections import ConfigDict

from experiments.benchmark.suite import Grid, Row, Suite
from l2rm_jax.data.mismatch import SEMI_PAIRED

_NO_MINING = {"rcsl.mining": "none"}
_NO_REGULARISER, _NO_PAIRED = {"rcsl.regulariser": False}, {"rcsl.paired_loss": False}
_CHANGES = {
    "RCSL": {},
    "without regulariser": _NO_REGULARISER,
    "without loss of known pairs": _NO_PAIRED,
    "without mined texts": {"rcsl.mining": "images"},
    "without mined images": {"rcsl.mining": "texts"},
    "without mining": _NO_MINING,
    "without regulariser and mining": {**_NO_REGULARISER, **_NO_MINING},
    "without loss of known pairs and mining": {**_NO_PAIRED, **_NO_MINING},
}


def paired_images(config: ConfigDict) -> int:
    """Images that keep their captions; 0, which a run refuses, where their number is not known."""
    data = config.data
    images = data.scenes_train if data.name == "scenes" else data.train_images
    return config.mismatch.paired_images or images // 5


SUITE = Suite(
    config="scenes:long",
    rows={
        name: Row({"method": "rcsl", "mismatch.paired_images": paired_images, **fields})
        for name, fields in _CHANGES.items()
    },
    grids=(Grid([*_CHANGES], ("aggregate",), (SEMI_PAIRED,), (0.0,), (0, 1, 2)),),
    needs_path=False,
)
