"""Steps and scoring on an accelerator: ours, PyTorch's, and whether ours are right there."""

import os
import time
from types import SimpleNamespace

import numpy as np

from experiments.bench.gpu_rows import Rows, peak_gib, seconds_of, sizes_of, spread


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


def loss_of(metrics: dict) -> float:
    return float(np.ravel(np.asarray(metrics["loss"]))[0])
