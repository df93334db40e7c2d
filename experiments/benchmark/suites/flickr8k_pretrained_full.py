"""All 6000 training images of Flickr8k, captions read by a sentence encoder, frozen or trained."""

from experiments.benchmark.suite import Grid, Suite
from experiments.benchmark.suites.flickr8k_pretrained import ROWS

_ROWS = [name for name in ROWS if name.startswith(("recipe frozen", "infonce kept"))]
SUITE = Suite(
    config="recipes:pretrained",
    rows=ROWS,
    grids=(Grid(_ROWS, ("vse",), ("image",), (0.4,), (0, 1, 2)),),
    settings={"data.name": "flickr8k", "data.train_images": 0},
    needs_pretrained=True,
)
