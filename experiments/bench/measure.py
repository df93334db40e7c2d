"""Timing, random inputs and the report of all benchmarks."""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.script import new_parser, processor
from l2rm_jax import config as defaults
from l2rm_jax.data.batches import smallest_bucket
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import usable_cores
from l2rm_jax.devices.parallel import PRECISIONS
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.run.inputs import check_fields
from l2rm_jax.run.results import versions

VOCABULARY = 8000


def measure(function: Callable[[], Any], repeats: int) -> list[float]:
    """Return the seconds of each of `repeats` calls, results included, after one warm-up call."""
    jax.block_until_ready(function())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - start)
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {"median": float(np.median(values)), "min": min(values), "max": max(values)}


def report(results: Mapping[str, Any], sizes: argparse.Namespace) -> None:
    """Print the results, one per line; write them with machine and sizes to `--json`."""
    record = {
        **results,
        "sizes": {name: value for name, value in vars(sizes).items() if name != "json"},
        "machine": {
            "processor": processor(),
            "cores": usable_cores(),
            "device": jax.devices()[0].device_kind,
            "devices": jax.device_count(),
        },
        "versions": versions(),
    }
    for part in ("machine", "sizes"):
        print("  ".join(f"{name} {value}" for name, value in record[part].items()))
    for name, value in results.items():
        print(f"{name:24} {_line(value)}")
    if sizes.json:
        replace_file(Path(sizes.json), json.dumps(record, indent=2, default=str).encode())


def peak_memory() -> dict[str, float]:
    """Return the peak memory in GiB of this process and, if it reports one, of its first device."""
    unit = 1 if sys.platform == "darwin" else 2**10
    peak = {"process_peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30}
    memory = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in memory:
        peak["device_peak_gib"] = memory["peak_bytes_in_use"] / 2**30
    return peak


def peak_anonymous_kib(process: subprocess.Popen) -> int:
    """Wait until a process ends; return the most anonymous memory that it had, in KiB."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_kib(process.pid))
        time.sleep(0.02)
    return peak


def memory_kib(process: int, kind: str = "RssAnon") -> int:
    """Return the memory of a process of some kind, anonymous by default; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(kind)), 0)


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_line(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of all benchmarks; default sizes are the paper's."""
    flags = new_parser(description)
    flags.add_argument("--regions", type=int, default=36, help="regions per image")
    flags.add_argument("--features", type=int, default=2048, help="features per region")
    flags.add_argument(
        "--words", type=int, nargs=2, default=(8, 20), help="fewest and most words of a caption"
    )
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--json", help="also write everything to this file")
    flags.add_argument("--head", default="sgr", help="a head of the models")
    flags.add_argument("--embed_dim", type=int, default=1024)
    flags.add_argument("--sim_dim", type=int, default=256)
    flags.add_argument(
        "--precision", default="float32", choices=PRECISIONS, help="precision of matrix products"
    )
    return flags


def config_of(sizes: argparse.Namespace) -> ConfigDict:
    """Return the default config with the sizes of a benchmark.

    Raises:
      ConfigError: a size is out of range.
    """
    config = defaults.default()
    config.model.head = sizes.head
    config.model.embed_dim, config.model.sim_dim = sizes.embed_dim, sizes.sim_dim
    if getattr(sizes, "chunk", None):
        config.model.chunk = sizes.chunk
    if getattr(sizes, "batch", None):
        config.train.batch_size = sizes.batch
    config.precision = sizes.precision
    check_fields(config)
    return config


def captions(rng: np.random.Generator, count: int, words: tuple[int, int]) -> list[np.ndarray]:
    """Return the word indices of random captions of `words[0]` to `words[1]` words."""
    lengths = rng.integers(words[0], words[1] + 1, count)
    return [rng.integers(1, VOCABULARY, length, dtype=np.int32) for length in lengths]


def pairs(rng: np.random.Generator, count: int, sizes: argparse.Namespace) -> Batch:
    """Return a batch of random pairs, padded as in training."""
    texts = captions(rng, count, sizes.words)
    lengths = np.array([len(text) for text in texts], np.int32)
    tokens = np.zeros((count, smallest_bucket(int(sizes.words[1]))), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    index = np.arange(count, dtype=np.int32)
    images = rng.standard_normal((count, sizes.regions, sizes.features), np.float32)
    regions = np.full(count, sizes.regions, np.int32)
    return Batch(images, regions, tokens, lengths, index, index)


def dataset(
    rng: np.random.Generator, features: RegionFeatures, count: int, words: tuple[int, int]
) -> TrainPairs:
    """Return a split with `count` random captions, the same number for each image."""
    per_image = count // len(features)
    image_of = np.arange(len(features) * per_image) // per_image
    texts = captions(rng, len(image_of), words)
    return TrainPairs(Pairs(features, texts, image_of, split="bench"), image_of)


def write_features(path: Path, images: int, regions: int, features: int) -> None:
    """Write a file of random features; blocks repeat the first in another order, to be quick."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((min(500, images), regions, features), np.float32)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (images, regions, features))
    for start in range(0, images, len(block)):
        count = min(len(block), images - start)
        array[start : start + count] = np.roll(block, start % 97, axis=2)[:count]
    array.flush()
