"""Time a search of a large gallery of vectors in a file, against the bare product by NumPy.

python -m experiments.bench.search --dir=/tmp/gallery --json=FILE

Writes a file of random unit vectors (4 GB for 1,000,000 of 1024) and searches it by
`Retriever.search`, in turns with `queries @ block.T` of NumPy, block by block of the same mapped
file. `held` is the largest anonymous memory while searching: the memory of the process without
the pages of the file.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.bench import measure
from experiments.bench.measure import memory_kib
from experiments.script import new_parser
from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.models import make_model
from l2rm_jax.retriever import EncodedCaptions, EncodedImages, Retriever
from l2rm_jax.retriever.network import Network
from l2rm_jax.retriever.sources import row_numbers

BLOCK = 32768  # gallery vectors that NumPy multiplies at once


def main() -> None:
    flags = new_parser(__doc__)
    flags.add_argument("--dir", type=Path, required=True, help="directory of the file")
    flags.add_argument("--gallery", type=int, default=1_000_000, help="vectors in the gallery")
    flags.add_argument("--width", type=int, default=1024, help="numbers of a vector")
    flags.add_argument("--queries", type=int, default=100)
    flags.add_argument("--top_k", type=int, default=10)
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--json", help="also write everything to this file")
    sizes = flags.parse_args()
    measure.report(search_against_product(sizes), sizes)


def search_against_product(sizes: argparse.Namespace) -> dict[str, Any]:
    """Search and multiply in turns; return seconds, the ratio of the medians and the memory."""
    vectors = _gallery(sizes.dir, sizes.gallery, sizes.width)
    queries = _unit(np.random.default_rng(1), sizes.queries, sizes.width)
    retriever = _retriever(sizes.width)
    gallery = EncodedImages(retriever.maker, (vectors,), row_numbers(len(vectors)))
    asked = EncodedCaptions(retriever.maker, (queries,), row_numbers(len(queries)))

    def search() -> None:
        retriever.search(asked, gallery, sizes.top_k)

    def product() -> None:
        for start in range(0, len(vectors), BLOCK):
            queries @ vectors[start : start + BLOCK].T

    search(), product()  # compiles, and reads the file into the system's cache
    held = _held_while(search)
    seconds: dict[str, list[float]] = {"search": [], "product": []}
    for _ in range(sizes.repeats):
        for name, work in (("search", search), ("product", product)):
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    spreads = {name: measure.spread(values) for name, values in seconds.items()}
    return {**spreads, "ratio": medians["search"] / medians["product"], "held_gib": held / 2**20}


def _gallery(directory: Path, count: int, width: int) -> np.ndarray:
    """The mapped file of random unit vectors, written unless it is there."""
    path = directory / f"gallery-{count}x{width}.npy"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        rng, partial = np.random.default_rng(0), path.with_suffix(".partial")
        file = np.lib.format.open_memmap(partial, "w+", np.float32, (count, width))
        for start in range(0, count, BLOCK):
            file[start : start + BLOCK] = _unit(rng, min(BLOCK, count - start), width)
        file.flush()
        partial.rename(path)
    return np.load(path, mmap_mode="r")


def _unit(rng: np.random.Generator, count: int, width: int) -> np.ndarray:
    vectors = rng.standard_normal((count, width), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _retriever(width: int) -> Retriever:
    """A retriever with vectors of this width; its weights are random and not used."""
    config = defaults.default()
    config.model.head, config.model.embed_dim = "vse", width
    model = make_model(config, vocabulary_size=0)
    one, count = np.zeros((1, 1, 1), np.float32), np.ones(1, np.int32)
    variables = jax.jit(model.init)(jax.random.key(0), Batch(one, count, one, count))
    settings = {"split_sentences": False, "precision": config.precision, "batch_size": 1}
    network = Network("random", "vse", model, {"batch_stats": {}, **variables}, None, **settings)
    return Retriever([network], config.data)


def _held_while(work: Callable[[], None]) -> int:
    """Largest anonymous memory of this process during `work`, in KiB (Linux)."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, memory_kib(os.getpid()))

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    done.set()
    thread.join()
    return peak


if __name__ == "__main__":
    main()
