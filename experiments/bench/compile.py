"""Time to the first step: python -m experiments.bench.compile --embed_dim=256 --sim_dim=64

A run waits this long when a phase starts, or when captions of a new length bucket come: the step is
traced in Python, compiled, and run. The compilation cache is off. --mapped_by=pmap,shard_map
compares the two ways to map a step over the devices, in turns; --csv writes a row for each.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np

from experiments.bench.measure import parser, report, spread
from experiments.bench.step import prepare
from experiments.csv_rows import write_rows
from experiments.papers.sweep import start
from l2rm_jax.devices import parallel
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.methods import METHODS


def flags() -> argparse.ArgumentParser:
    flags = parser(__doc__)
    flags.set_defaults(repeats=3)
    flags.add_argument("--method", default="l2rm", choices=METHODS)
    flags.add_argument("--batch", type=int, default=32, help="pairs of a stream on all devices")
    flags.add_argument("--mapped_by", default=parallel.MAPPED_BY, help="pmap, shard_map or both")
    flags.add_argument("--csv", type=Path, help="also write medians to this file")
    return flags


def main() -> None:
    sizes = flags().parse_args()
    was_enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    # The other methods take nearly the same step in their warm-up as after it.
    phases = ("warmup", "main") if sizes.method == "l2rm" else ("main",)
    maps = sizes.mapped_by.split(",")
    seconds = {(name, phase): [] for phase in phases for name in maps}
    for phase in phases:
        for _ in range(sizes.repeats):
            for name in maps:
                jax.clear_caches()
                parallel.MAPPED_BY = name
                with matmul_precision(sizes.precision):
                    seconds[name, phase].append(first_step(sizes, phase))
    jax.config.update("jax_enable_compilation_cache", was_enabled)
    medians = {
        key: {part: spread([one[part] for one in measured]) for part in measured[0]}
        for key, measured in seconds.items()
    }
    results = {
        (f"{name}_" if len(maps) > 1 else "") + f"{phase}_{part}_s": values
        for (name, phase), parts in medians.items()
        for part, values in parts.items()
    }
    report(results, sizes)
    if sizes.csv:
        about = {name: getattr(sizes, name) for name in ("method", "head", "batch", "repeats")}
        rows = [
            {**about, "phase": phase, "mapped_by": name}
            | {f"{part}_s": round(values["median"], 2) for part, values in parts.items()}
            for (name, phase), parts in medians.items()
        ]
        write_rows(sizes.csv, rows)


def first_step(sizes: argparse.Namespace, phase: str) -> dict[str, float]:
    """Return the seconds of each part of a phase's first step, and their sum."""
    prepared = prepare(sizes, {"warmup": 1} if phase == "warmup" else None)
    inputs = prepared.state, prepared.shards()
    times = [time.perf_counter()]
    lowered = prepared.step.function.lower(*inputs)
    times.append(time.perf_counter())
    step = lowered.compile()
    times.append(time.perf_counter())
    jax.block_until_ready(step(*inputs))
    times.append(time.perf_counter())
    parts = dict(zip(("trace", "compile", "step"), np.diff(times).tolist(), strict=True))
    return {**parts, "first_step": times[-1] - times[0]}


if __name__ == "__main__":
    start(main)
