"""Seconds to match images with captions: every row of the suite omit-heads (OMIT Tab. 5).

python -m experiments.bench.matching
python -m experiments.bench.matching --set model.embed_dim=128 --set model.word_dim=128

Matches 500 images of 36 regions with 2500 captions of 16 words on one device of this machine, once
all are encoded, as evaluation does: a head that is one matrix product pools each image and each
caption once.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmark.suite import cells, find_suite
from experiments.script import add_settings, new_parser, start
from l2rm_jax.devices.batch import Batch
from l2rm_jax.models import make_model
from l2rm_jax.run.config_file import with_changes

# Both counts are multiples of the tile.
TILE, IMAGES, CAPTIONS = 125, 500, 2500
REGIONS, FEATURES, WORDS, VOCABULARY = 36, 128, 16, 1000


def main() -> None:
    parser = new_parser(__doc__)
    add_settings(parser, "set")
    settings = parser.parse_args().set
    runs = cells(find_suite("omit-heads"), Path())
    for row, config in {cell.row: cell.config for cell in runs}.items():
        seconds = matching_seconds(with_changes(config, settings))
        print(f"{row:<20}{seconds:8.2f}", flush=True)


def matching_seconds(config: ConfigDict) -> float:
    """Return the seconds to match all images with all captions, encoders not included.

    Matching works as in evaluation: tile by tile or, for a head that is one matrix product, by one
    product of vectors that are pooled once.
    """
    model = make_model(config, vocabulary_size=VOCABULARY)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(TILE, REGIONS, FEATURES)).astype(np.float32)
    tokens = rng.integers(VOCABULARY, size=(TILE, WORDS))
    batch = Batch(images, np.full(TILE, REGIONS), tokens, np.full(TILE, WORDS))
    variables = jax.jit(model.init)(jax.random.key(0), batch)

    def compiled(method: str | Callable) -> Callable:
        function = jax.jit(lambda *inputs: model.apply(*inputs, method=method))
        return partial(function, variables)  # as an argument: constants would be folded

    image_code, text_code = compiled("encode")(batch)
    match = compiled("similarity")
    pool_images = compiled(lambda model, code: model.similarity_head.embed_images(code))
    pool_texts = compiled(lambda model, code: model.similarity_head.embed_texts(code))

    def match_tiles(image_tiles: int, caption_tiles: int) -> None:
        for _ in range(image_tiles * caption_tiles):
            match(image_code, text_code).block_until_ready()

    def multiply(image_tiles: int, caption_tiles: int) -> None:
        vectors = np.concatenate([pool_images(image_code) for _ in range(image_tiles)])
        texts = np.concatenate([pool_texts(text_code) for _ in range(caption_tiles)])
        vectors @ texts.T

    work = multiply if model.is_product else match_tiles
    work(1, 1)  # compile
    begin = time.perf_counter()
    work(IMAGES // TILE, CAPTIONS // TILE)
    return time.perf_counter() - begin


if __name__ == "__main__":
    start(main)
