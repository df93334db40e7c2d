"""Flickr30K with region features, each method with its published settings; needs a GPU."""

from experiments.benchmark.published import published_suite

SUITE = published_suite("f30k", ("image", "caption"), (0.2, 0.4, 0.6, 0.8))
