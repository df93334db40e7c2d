"""All 6000 training images of Flickr8k, captions read by a sentence encoder, frozen or trained."""

from experiments.benchmark.suite import Suite
from experiments.benchmark.suites.flickr8k_pretrained import GRIDS, ROWS

SUITE = Suite(
    config="recipes:pretrained",
    rows=ROWS,
    grids=GRIDS,
    settings={"data.name": "flickr8k", "data.train_images": 0},
    needs_pretrained=True,
)
