"""CC152K, whose pairs are mismatched as they come: published settings; needs a GPU."""

from experiments.benchmark.published import published_suite

SUITE = published_suite("cc152k", ("image",), (0.0,))
