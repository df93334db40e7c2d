"""MS-COCO with region features, each method with its published settings; needs a GPU."""

from experiments.benchmark.published import published_suite

SUITE = published_suite("coco", ("image", "caption"), (0.2, 0.4, 0.6, 0.8))
