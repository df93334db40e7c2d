"""Flickr8k with few known pairs: RCSL beside the triplet loss on these pairs alone.

500 or 2000 of the 6000 training images keep their captions (RCSL Tab. 1 and 2, reduced for a
CPU). Both methods have RCSL's embedding model and the same number of updates; an epoch of RCSL also
covers the unpaired data.
"""

from experiments.benchmark.suite import Grid, Row, Suite
from l2rm_jax.data.mismatch import SEMI_PAIRED


def _row(method: str, paired_images: int, warmup: int, epochs: int) -> Row:
    phases = {"train.warmup_epochs": warmup, "train.epochs": epochs}
    return Row({"method": method, "mismatch.paired_images": paired_images, **phases})


ROWS = {
    "triplet 500": _row("triplet", 500, 17, 46),
    "rcsl 500": _row("rcsl", 500, 8, 3),
    "triplet 2000": _row("triplet", 2000, 6, 14),
    "rcsl 2000": _row("rcsl", 2000, 8, 3),
}
SUITE = Suite(
    config="flickr8k",
    rows=ROWS,
    grids=(Grid([*ROWS], ("aggregate",), (SEMI_PAIRED,), (0.0,), (0, 1, 2)),),
    settings={
        "data.train_images": 0,
        "model.dropout": 0.1,
        "optim.weight_decay": 0.01,
        "optim.decay_epochs": 100,  # never reached: the learning rate is constant
        "rcsl.learning_share": 0.2,
        "train.batch_size": 128,
    },
)
