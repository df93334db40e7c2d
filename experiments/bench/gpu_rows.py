"""Rows of the benchmark of an accelerator, its timer and its sizes."""

import contextlib
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

FIELDS = ("part", "what", "value", "unit", "more")


class Rows:
    """Rows of results, written at once."""

    def __init__(self, out: Path, part: str):
        out.mkdir(parents=True, exist_ok=True)
        self._file, self._part = out / "rounds.csv", part
        if not self._file.exists():
            with self._file.open("w", newline="") as file:
                csv.writer(file).writerow(FIELDS)

    def add(self, what: str, value, unit: str = "", more: str = "") -> None:
        value = float(f"{value:.5g}") if isinstance(value, float) else value
        with self._file.open("a", newline="") as file:
            csv.writer(file).writerow((self._part, what, value, unit, more))
        print(f"{self._part:10} {what:44} {value} {unit} {more}", flush=True)

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Add a row about a failure, such as an algorithm that the device lacks, and continue."""
        try:
            yield
        except Exception as error:
            self.add(what, f"failed: {type(error).__name__}: {str(error).splitlines()[0][:160]}")


def seconds_of(function: Callable, repeats: int, limit: float = 12.0) -> tuple[float, list[float]]:
    """Return the seconds of a first call, and of each call after it, in at most `limit` seconds."""
    import jax

    def timed() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function())
        return time.perf_counter() - start

    first, seconds = timed(), []
    begin = time.perf_counter()
    while len(seconds) < repeats and (len(seconds) < 3 or time.perf_counter() - begin < limit):
        seconds.append(timed())
    return first, seconds


def spread(seconds: Sequence[float]) -> str:
    return f"min {min(seconds):.4g} max {max(seconds):.4g} n {len(seconds)}"


def peak_gib() -> float:
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30


def sizes_of(tiny: bool, **more) -> SimpleNamespace:
    known = {
        "method": "l2rm",
        "head": "sgr",
        "batch": 8 if tiny else 128,
        "chunk": None,
        "regions": 4 if tiny else 36,
        "features": 16 if tiny else 2048,
        "words": (12, 16),
        "embed_dim": 16 if tiny else 1024,
        "sim_dim": 8 if tiny else 256,
        "precision": "float32",
        "images": 8 if tiny else 1000,
        "captions": 40 if tiny else 5000,
        "repeats": 3 if tiny else 20,
        "json": None,
    }
    return SimpleNamespace(**{**known, **more})
