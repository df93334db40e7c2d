"""Timing, made-up inputs, and what every benchmark prints and writes."""

import argparse
import json
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from l2rm_jax import config as defaults
from l2rm_jax.data.batches import Batch, bucket_of
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.files import replace_file
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.devices.hosts import usable_cores
from l2rm_jax.devices.parallel import PRECISIONS
from l2rm_jax.run.fields import check_fields
from l2rm_jax.run.results import versions

VOCABULARY = 8000


def measure(function: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls, after one that is not counted; results are waited for."""
    jax.block_until_ready(function())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - start)
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": float(np.median(values)), "min": min(values), "max": max(values)}


def report(results: Mapping[str, Any], sizes: argparse.Namespace) -> None:
    """Prints the results, a line each, and writes them, with machine and sizes, to `--json`."""
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


def processor() -> str:
    """Name of the machine's processor; Linux keeps it in a file, Python says `x86_64` there."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", file.read_text(), re.M) if file.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def peak_memory() -> dict[str, float]:
    """GiB that this process has held at most, and its first device, where that keeps count."""
    unit = 1 if sys.platform == "darwin" else 2**10
    peak = {"process_peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30}
    memory = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in memory:
        peak["device_peak_gib"] = memory["peak_bytes_in_use"] / 2**30
    return peak


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_line(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def data_parser(description: str) -> argparse.ArgumentParser:
    """Flags that every benchmark has; sizes are those of the paper unless given."""
    flags = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    flags.add_argument("--regions", type=int, default=36, help="of an image")
    flags.add_argument("--features", type=int, default=2048, help="of a region")
    flags.add_argument("--words", type=int, nargs=2, default=(8, 20), help="of a caption, from, to")
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--json", help="also write everything to this file")
    return flags


def parser(description: str) -> argparse.ArgumentParser:
    """Flags of a benchmark that has a model."""
    flags = data_parser(description)
    flags.add_argument("--head", default="sgr", help="a head of the models")
    flags.add_argument("--embed_dim", type=int, default=1024)
    flags.add_argument("--sim_dim", type=int, default=256)
    flags.add_argument("--precision", default="float32", choices=PRECISIONS, help="of products")
    return flags


def config_of(sizes: argparse.Namespace) -> ConfigDict:
    """The default config with the sizes of a benchmark.

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
    """Word indices of made-up captions of `words[0]` to `words[1]` words."""
    lengths = rng.integers(words[0], words[1] + 1, count)
    return [rng.integers(1, VOCABULARY, length, dtype=np.int32) for length in lengths]


def pairs(rng: np.random.Generator, count: int, sizes: argparse.Namespace) -> Batch:
    """A batch of made-up pairs, padded as the loop pads."""
    texts = captions(rng, count, sizes.words)
    lengths = np.array([len(text) for text in texts], np.int32)
    tokens = np.zeros((count, bucket_of(int(sizes.words[1]))), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    index = np.arange(count, dtype=np.int32)
    images = rng.standard_normal((count, sizes.regions, sizes.features), np.float32)
    regions = np.full(count, sizes.regions, np.int32)
    return Batch(images, regions, tokens, lengths, index, index)


def dataset(
    rng: np.random.Generator, features: RegionFeatures, count: int, words: tuple[int, int]
) -> PairDataset:
    """`count` made-up captions of the images of `features`, the same number each."""
    each = count // len(features)
    own = np.arange(len(features) * each) // each
    texts = captions(rng, len(own), words)
    return PairDataset("bench", features, [""] * len(own), texts, own, own)
