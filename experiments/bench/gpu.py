"""Time the work of an accelerator: `python -m experiments.bench.gpu PART --out=DIR`.

Measures the device's limits, a step and the scoring of a test set, the same step in PyTorch,
transport, an epoch from disk and an audit. `right` compares losses with the CPU's. Each part
prints rows and appends them to `DIR/rounds.csv` as it goes. Run each in a process of its own, so
that a crash or a time limit loses nothing else. `write` writes the file of features that `epoch`
reads; `--tiny` takes sizes for a CPU:

    JAX_PLATFORMS=cpu python -m experiments.bench.gpu steps --tiny --out=/tmp/gpu
"""

import argparse
import contextlib
import csv
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

BEGIN = time.perf_counter()
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


# --- ceilings -----------------------------------------------------------------------------------


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


# --- our step -----------------------------------------------------------------------------------


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


def steps(rows: Rows, tiny: bool, heads=("sgr", "saf"), precisions=("float32", "bfloat16")) -> None:
    """Time a step of l2rm after the warm-up, with its input on the host and on the device."""
    for head in heads:
        for precision in precisions:
            label = f"l2rm {head} {precision}"
            with rows.attempt(label):
                time_step(rows, sizes_of(tiny, head=head, precision=precision), label)


def time_step(rows: Rows, sizes: SimpleNamespace, label: str) -> None:
    import jax

    from experiments.bench.step import bench_operations, prepare
    from l2rm_jax.devices.parallel import matmul_precision

    with matmul_precision(sizes.precision):
        prepared = prepare(sizes)
        state, shards = prepared.state, prepared.shards()

        def step(inputs):
            nonlocal state
            state, metrics = prepared.step(state, inputs)
            return metrics

        first, seconds = seconds_of(lambda: step(shards), sizes.repeats)
        on_device = jax.device_put(shards) if jax.device_count() == 1 else shards
        _, resident = seconds_of(lambda: step(on_device), sizes.repeats)
        metrics = jax.device_get(step(shards))
    operations = bench_operations(sizes)
    rows.add(f"{label}: first step", first, "s", "compilation")
    rows.add(f"{label}: step", 1e3 * np.median(seconds), "ms", spread(seconds))
    rows.add(f"{label}: step, input on device", 1e3 * np.median(resident), "ms", spread(resident))
    rate = operations / np.median(resident) / 1e12
    rows.add(f"{label}: matrix products", rate, "TFLOP/s", f"{operations / 1e12:.4g} TFLOP")
    rows.add(f"{label}: peak memory so far", peak_gib(), "GiB")
    loss = loss_of(metrics)
    is_finite = "finite" if np.isfinite(loss) else "NOT FINITE"
    rows.add(f"{label}: loss after the steps", loss, "", is_finite)


def loss_of(metrics: dict) -> float:
    return float(np.ravel(np.asarray(metrics["loss"]))[0])


# --- PyTorch's step -----------------------------------------------------------------------------


def torch_steps(rows: Rows, tiny: bool) -> None:
    """Time the same step in PyTorch, one caption at a time, as public code has it; and scoring."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # JAX makes the inputs only
    import torch

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    rows.add("device", torch.cuda.get_device_name() if on_gpu else "cpu", "", torch.__version__)
    if on_gpu:
        x = torch.randn(8192, 8192, device=device)
        for name, y in (("float32", x), ("bfloat16", x.bfloat16())):
            y @ y
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                y @ y
            torch.cuda.synchronize()
            rate = 10 * 2 * 8192**3 / (time.perf_counter() - start) / 1e12
            rows.add(f"matmul 8192, {name}", rate, "TFLOP/s")
    for head in ("sgr", "saf"):
        for name in ("float32", "TF32", "bfloat16"):
            torch_step(rows, sizes_of(tiny, head=head), device, name)


def torch_step(rows: Rows, sizes: SimpleNamespace, device: str, precision: str) -> None:
    """Time PyTorch's step in one precision, and in bfloat16 its scoring too."""
    import torch

    from experiments.bench import caption_loop, peer, step

    torch.manual_seed(0)
    is_tf32, on_gpu = precision == "TF32", device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32
    network = peer.network(sizes).to(device)
    trainer = caption_loop.Trainer(network, sizes.batch)
    batches = step.random_batches(sizes, {"matched": 1, "mismatched": 1})

    def tensors(batch):  # lengths of packed sequences stay on the CPU
        pairs = peer.as_tensors(batch)
        return pairs._replace(images=pairs.images.to(device), tokens=pairs.tokens.to(device))

    def once():
        inputs = {key: tensors(batch) for key, batch in batches.items()}
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            metrics = trainer.step(**inputs)
        if on_gpu:
            torch.cuda.synchronize()
        return metrics

    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    first, seconds = seconds_of(once, 8, 8)
    metrics = once()
    label = f"torch {sizes.head} {precision}"
    rows.add(f"{label}: first step", first, "s")
    rows.add(f"{label}: step", 1e3 * np.median(seconds), "ms", spread(seconds))
    rows.add(f"{label}: loss after the steps", float(metrics["loss"]))
    if on_gpu:
        rows.add(f"{label}: peak memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")
    if precision != "bfloat16":
        return
    # Scoring, in blocks of 128 x 128, from vectors that are encoded in bfloat16.
    images, tokens, lengths = tensors(batches["matched"])
    network.eval()
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        regions, words = network.encode_images(images), network.encode_captions(tokens, lengths)
        for _ in range(2):
            start = time.perf_counter()
            network.sim_enc(regions, words, lengths).float().cpu()
            block = time.perf_counter() - start
    count = len(images)
    whole = block * (sizes.images / count) * (sizes.captions / count)
    rows.add(f"{label}: scoring, scaled up from a block", whole, "s", f"{count}^2 pairs")


# --- scoring ------------------------------------------------------------------------------------


def scoring(rows: Rows, tiny: bool) -> None:
    """Time the scoring of a test set, encoders included."""
    from experiments.bench import score
    from l2rm_jax.devices.parallel import matmul_precision

    for head in ("sgr", "saf"):
        for precision in ("bfloat16", "float32"):
            sizes = sizes_of(tiny, head=head, precision=precision)
            with rows.attempt(f"score {head} {precision}"):
                with matmul_precision(precision):
                    first, seconds = seconds_of(score.prepare(sizes, score.test_set(sizes)), 3, 6)
                label = f"score {sizes.images} x {sizes.captions} {head} {precision}"
                rows.add(f"{label}: first", first, "s", "compilation")
                rows.add(label, float(np.median(seconds)), "s", spread(seconds))
                rows.add(f"{label}: peak memory so far", peak_gib(), "GiB")


# --- transport ----------------------------------------------------------------------------------


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


# --- an epoch from disk -------------------------------------------------------------------------


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


# --- audit --------------------------------------------------------------------------------------


def audit(rows: Rows, tiny: bool, directory: Path) -> None:
    """Audit random vectors, as `bench.audit` does; judging runs on the GPU."""
    from experiments.bench.audit import measure, write_vectors
    from l2rm_jax.devices.programs import prepare_process
    from l2rm_jax.executors import Place

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


# --- is it right on this device? ------------------------------------------------------------------


def right(rows: Rows, tiny: bool) -> None:
    """Compare the losses of the first steps on the GPU and on the CPU of the same machine."""
    import jax

    from experiments.bench.step import prepare
    from l2rm_jax.devices import parallel
    from l2rm_jax.devices.parallel import matmul_precision

    gpu = jax.devices()[0]
    cpu = jax.devices("cpu")[0]
    sizes = sizes_of(True, batch=16, regions=6, features=32, embed_dim=32, sim_dim=16)
    for head in ("sgr", "saf"):
        losses = {}
        for device in {gpu, cpu}:
            sizes.head = head
            try:
                parallel.Replicas.__init__.__defaults__ = ([device],)
                with matmul_precision("float32"), jax.default_device(device):
                    prepared = prepare(sizes)
                    state, found = prepared.state, []
                    for _ in range(4):
                        state, metrics = prepared.step(state, prepared.shards())
                        found.append(loss_of(metrics))
            finally:
                parallel.Replicas.__init__.__defaults__ = (None,)
            losses[device.platform] = found
        a, b = np.array(losses[gpu.platform]), np.array(losses["cpu"])
        worst = float(np.max(np.abs(a - b) / np.abs(b)))
        rows.add(
            f"{head}: largest relative difference of 4 losses", worst, "", f"{gpu.platform} and cpu"
        )


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
