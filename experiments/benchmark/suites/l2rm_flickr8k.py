"""L2RM and the baselines on Flickr8k with grid features, as in L2RM Tab. 1: 10,000 training pairs.

Settings and validation images are as in one run of the authors' public code, shown in
experiments/results/SMALLER.md beside the six seeds at rate 0.4. That run had the vocabulary of all
training captions, as `experiments.papers.vocabulary` writes it: --set data.vocabulary=FILE.
"""

from experiments.benchmark.suite import Grid, Row, Suite
from experiments.judging.crossfit import DEV_IMAGES

SUITE = Suite(
    config="flickr8k",
    rows={
        "l2rm": Row({"method": "l2rm"}, "loss"),
        "infonce": Row({"method": "infonce"}),
        "triplet": Row({"method": "triplet"}),
    },
    grids=(
        Grid(("l2rm",), ("saf",), ("image",), (0.4,), range(6)),
        Grid(("l2rm", "infonce", "triplet"), ("saf",), ("image",), (0.2, 0.4, 0.6, 0.8), (0,)),
    ),
    settings={"data.dev_images": DEV_IMAGES},
)
