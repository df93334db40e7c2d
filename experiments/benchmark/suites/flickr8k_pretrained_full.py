"""All 6000 training images of Flickr8k, captions read by a sentence encoder, frozen or trained."""

from experiments.benchmark.suite import Grid, Row, Suite
from experiments.benchmark.suites.flickr8k_pretrained import RECIPE, ROWS

_ROWS = {name: row for name, row in ROWS.items() if name.startswith(("recipe words", "infonce"))}
_FROZEN = {"recipe frozen": Row({**RECIPE, "train.length_groups": 8}, "crossfit")}
SUITE = Suite(
    config="recipes:pretrained",
    rows={**_ROWS, **_FROZEN},
    grids=(Grid([*_ROWS, *_FROZEN], ("vse",), ("image",), (0.4,), (0, 1, 2)),),
    settings={"data.name": "flickr8k", "data.train_images": 0},
    needs_pretrained=True,
)
