"""Time the work of an accelerator: `python -m experiments.bench.gpu PART --out=DIR`.

Measures the device's limits, a step and the scoring of a test set, the same step in PyTorch,
transport, an epoch from disk and an audit. `right` compares losses with the CPU's. Each part
prints rows and appends them to `DIR/rounds.csv` as it goes. Run each in a process of its own, so
that a crash or a time limit loses nothing else. `write` writes the file of features that `epoch`
reads; `--tiny` takes sizes for a CPU:

    JAX_PLATFORMS=cpu python -m experiments.bench.gpu steps --tiny --out=/tmp/gpu
"""

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np

from experiments.bench.gpu_rows import Rows, peak_gib, seconds_of, sizes_of, spread
from experiments.bench.gpu_steps import right, scoring, steps, torch_steps

BEGIN = time.perf_counter()


def ceilings(rows: Rows, tiny: bool) -> None:
    """Measure matrix products, memory bandwidth and the smallest program."""
    import jax
    import jax.numpy as jnp

    rows.add("device", jax.devices()[0].device_kind, "", f"jax {jax.__version__}")
    rows.add("import jax and first device", time.perf_counter() - BEGIN, "s")
    n = 256 if tiny else 8192
    key = jax.random.key(0)
    square = jax.random.normal(key, (n, n))
    for name, kind, precision in (
        ("float32, all digits", jnp.float32, "highest"),
        ("float32, TF32 (JAX's default)", jnp.float32, "default"),
        ("float32 as BF16_BF16_F32", jnp.float32, "BF16_BF16_F32"),
        ("bfloat16", jnp.bfloat16, "default"),
    ):
        label, x = f"matmul {n}, {name}", square.astype(kind)
        with rows.attempt(label), jax.default_matmul_precision(precision):
            _, seconds = seconds_of(partial(jax.jit(jnp.matmul), x, x), 10, 5)
            rate = 2 * n**3 / np.median(seconds) / 1e12
            rows.add(label, rate, "TFLOP/s", spread(seconds))
    m = 2**16 if tiny else 2**29
    x = jax.random.normal(key, (m,))
    copy = jax.jit(lambda x: x + 1)
    _, seconds = seconds_of(lambda: copy(x), 10, 5)
    rate = 8 * m / np.median(seconds) / 1e9
    rows.add("copy on the device, read + write", rate, "GB/s", spread(seconds))
    host = np.random.default_rng(0).standard_normal((8 if tiny else 256, 36, 2048), np.float32)
    _, seconds = seconds_of(lambda: jax.device_put(host), 10, 5)
    rate = host.nbytes / np.median(seconds) / 1e9
    rows.add("host to device, pageable", rate, "GB/s", spread(seconds))
    _, seconds = seconds_of(lambda: copy(jnp.ones(())), 50, 2)
    rows.add("smallest program", np.median(seconds) * 1e6, "us", spread(seconds))


def solver(rows: Rows, tiny: bool) -> None:
    """Time ours against ott-jax on the same extended problem, to the same error."""
    from experiments.bench import solver as bench
    from experiments.bench import solvers

    target = 1e-3
    for n, batch in ((16, 4), (32, 1)) if tiny else ((128, 1), (128, 64), (2048, 1)):
        costs = bench.draw("learned", n, batch)
        for epsilon in (0.01, 0.07):
            for name, make in (("ours", solvers.ours), ("ott-jax", solvers.ott)):
                label = f"{name} n {n} batch {batch} epsilon {epsilon}"
                with rows.attempt(label):
                    [found] = bench.bench(costs, epsilon, target, 7, {name: make})
                    is_there = "" if found["error"] <= 1.05 * target else " NOT THERE"
                    more = f"error {found['error']:.1e}{is_there} iterations {found['iterations']}"
                    rows.add(label, 1e3 * found["seconds"], "ms", more)


def vectors(rows: Rows, tiny: bool) -> None:
    """Time an iteration between vectors, by the size of a block.

    FlashSinkhorn takes 10.3 ms on an A100.
    """
    import jax
    import jax.numpy as jnp

    from l2rm_jax.ot import partial_sinkhorn_of
    from l2rm_jax.ot import vectors as module

    size, dim = (500, 8) if tiny else (50_000, 64)
    few, many = (2, 6) if tiny else (4, 24)
    images = jax.random.normal(jax.random.key(0), (size, dim))
    captions = images + jax.random.normal(jax.random.key(1), images.shape)
    images, captions = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (images, captions))

    def product(a, b):  # TF32 instead of all digits
        return 1.0 - jnp.matmul(a, b.T, precision=jax.lax.Precision.DEFAULT)

    def seconds_of_iterations(cost, count: int) -> float:
        start = time.perf_counter()
        options = {"epsilon": 0.05, "cost": cost, "threshold": 0.0}  # which is never reached
        found = partial_sinkhorn_of(images, captions, 0.9, max_iterations=count, **options)
        jax.block_until_ready(found.log_rows)
        return time.perf_counter() - start

    least = 2 * 2 * 2 * size**2 * dim
    rows.add("work of an iteration", least / 1e12, "TFLOP", "all costs made twice, forward alone")
    for entries in (2**12, 2**14) if tiny else (2**22, 2**25, 2**28):
        for name, cost in (("all digits", module.product_distance), ("TF32", product)):
            module._BLOCK_ENTRIES = entries
            jax.clear_caches()
            label = f"n {size} d {dim}, blocks of 2^{entries.bit_length() - 1}, {name}"
            with rows.attempt(label):
                first = seconds_of_iterations(cost, few)
                short, long = (
                    min(seconds_of_iterations(cost, count) for _ in range(2))
                    for count in (few, many)
                )
                each = 1e3 * (long - short) / (many - few)
                more = f"first call {first:.3g} s, peak {peak_gib():.3g} GiB"
                rows.add(label, each, "ms an iteration", more)


def epoch(rows: Rows, tiny: bool, directory: Path) -> None:
    """Measure how busy the device is when features come from disk, as `bench.epoch` does."""
    from experiments.bench import epoch as bench
    from experiments.bench.measure import dataset, write_features
    from experiments.bench.step import prepare
    from l2rm_jax.data.features import RegionFeatures
    from l2rm_jax.data.streams import TrainStream
    from l2rm_jax.devices.hosts import usable_cores
    from l2rm_jax.devices.parallel import matmul_precision

    sizes = sizes_of(tiny, precision="bfloat16", steps=5 if tiny else 100)
    images = 60 if tiny else 29_000
    path = directory / "train_ims.npy"
    start = time.perf_counter()
    if not path.exists():
        write_features(path, images, sizes.regions, sizes.features)
        rows.add(
            "file written", time.perf_counter() - start, "s", f"{path.stat().st_size / 1e9:.3g} GB"
        )
    pairs = dataset(np.random.default_rng(0), RegionFeatures.read(path), 5 * images, sizes.words)
    halves = np.array_split(np.arange(len(pairs)), 2)
    streams = {"matched": halves[0], "mismatched": halves[1]}

    def stream(epoch):
        return TrainStream(pairs, streams, batch_size=sizes.batch, seed=0, epoch=epoch)

    begin, count = time.perf_counter(), 0
    for _ in stream(5).iterate():  # reading alone
        count += 1
        if count == sizes.steps:
            break
    rate = count * 2 * sizes.batch / (time.perf_counter() - begin)
    rows.add("pairs read in a second, nothing else", rate, "pairs/s", f"{usable_cores()} cores")
    with matmul_precision(sizes.precision):
        prepared = prepare(sizes)
        alone, seconds, taken = bench.run(prepared, stream(0), sizes)
    busy = taken * float(np.median(alone)) / seconds
    rows.add("step on one batch in memory", 1e3 * float(np.median(alone)), "ms", spread(alone))
    rows.add("step from disk", 1e3 * seconds / taken, "ms", f"{taken} steps")
    rows.add("busy", busy, "", "1: the input is no bottleneck")
    left = len(stream(0)) * seconds / taken
    rows.add("an epoch of all pairs at this rate", left, "s", f"{len(stream(0))} steps")


def audit(rows: Rows, tiny: bool, directory: Path) -> None:
    """Audit random vectors, as `bench.audit` does; judging runs on the GPU."""
    from experiments.bench.audit import measure, write_vectors
    from l2rm_jax.devices.programs import prepare_process
    from l2rm_jax.jobs import Place

    prepare_process()
    for count in (3000,) if tiny else (100_000, 1_000_000):
        folder = directory / f"audit_{count}"
        folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        write_vectors(folder, count, 32 if tiny else 512)
        rows.add(f"{count} pairs: vectors made", time.perf_counter() - start, "s")
        found = measure(folder, Place("local"))
        rows.add(
            f"{count} pairs",
            found["seconds"],
            "s",
            f"rate {found['rate']} cpu {found['cpu_seconds']} s",
        )
        rows.add(
            f"{count} pairs: judgement",
            found["judgement"],
            "",
            "another hash than on a CPU is no error",
        )
        rows.add(f"{count} pairs: peak memory of the device", peak_gib(), "GiB")


PARTS = {
    "ceilings": ceilings,
    "right": right,
    "steps": steps,
    "sgr_bf16": lambda rows, tiny: steps(rows, tiny, ("sgr",), ("bfloat16",)),
    "torch": torch_steps,
    "scoring": scoring,
    "solver": solver,
    "vectors": vectors,
}
WITH_FILES = {"epoch": epoch, "audit": audit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=(*PARTS, *WITH_FILES, "write"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dir", type=Path, default=Path("/tmp/gpu_round"))
    parser.add_argument("--tiny", action="store_true")
    flags = parser.parse_args()
    flags.dir.mkdir(parents=True, exist_ok=True)
    if flags.part == "write":
        from experiments.bench.measure import write_features

        tiny = sizes_of(flags.tiny)
        file, unfinished = flags.dir / "train_ims.npy", flags.dir / "unfinished.npy"
        write_features(unfinished, 60 if flags.tiny else 29_000, tiny.regions, tiny.features)
        unfinished.rename(file)
        return
    rows = Rows(flags.out, flags.part)
    if flags.part in WITH_FILES:
        WITH_FILES[flags.part](rows, flags.tiny, flags.dir)
    else:
        PARTS[flags.part](rows, flags.tiny)
    rows.add("seconds of the part", time.perf_counter() - BEGIN, "s")


if __name__ == "__main__":
    main()
