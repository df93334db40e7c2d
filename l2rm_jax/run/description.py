"""Sentences about a run: data, method and devices, and the time that an epoch will take."""

import numpy as np

from l2rm_jax.data.run_words import describe_unknown
from l2rm_jax.data.train_pairs import Data
from l2rm_jax.data.word_report import report_words
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.operations import operations_per_second
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.run.health import chance_rsum
from l2rm_jax.run.judgement import Summary
from l2rm_jax.run.run import Run

# Numbers of a vector from which on an epoch may be long; smaller models are not asked.
_LARGE = 512
_LONG_SECONDS = 600.0
# Speed of a step's products, relative to a large product: 85 of 152 GFLOP/s with SGR and 88 with
# SAF at 1024/256 on two cores (`experiments.bench.step`).
_EFFICIENCY = 0.55


def describe(run: Run, replicas: Replicas) -> str:
    """Describe a run: its data, method, head and mismatch, and its devices; several lines."""
    config, train, dev = run.config, run.data.train, run.data.dev
    chance, _ = chance_rsum(len(dev.images), dev.captions_per_image)
    lines = [
        f"{config.data.name}: {len(train.images):,} images, {len(train):,} captions; "
        f"{config.method}, {config.model.head}; "
        f"dev {len(dev.images):,} images (chance: {chance:.1f})",
        *([train.drawn.sentence()] if train.drawn else []),
        *run.data.mismatch.sentences(),
    ]
    warmup, epochs = config.train.warmup_epochs, config.train.epochs
    if run.method.epochs is None and warmup:
        lines.append(f"{warmup + epochs} epochs: {warmup} warm-up + {epochs}")
    if clipped := np.count_nonzero(train.lengths > config.data.max_words):
        lines.append(f"{clipped:,} training captions are clipped at {config.data.max_words} words")
    if run.data.word_vectors is not None:
        lines.append(describe_unknown(run.data.word_vectors))
    if run.method.networks > 1:
        lines.append(f"{run.method.networks} networks, whose similarities are averaged")
    if len(replicas) > 1:
        lines.append(f"{len(replicas)} devices on {replicas.share.hosts} host(s)")
    return "\n".join(lines)


def data_warnings(data: Data, judged: Summary | None) -> dict[str, str]:
    """Collect warnings about the training data before the first step."""
    words = report_words("train", data.train.captions, data.train.tokens, data.vocabulary)
    return {**words.warnings, **(judged.warnings if judged else {})}


def expected_epoch(run: Run, batch: dict[str, Batch], steps: int) -> str:
    """Say how long an epoch will take on a CPU, and which fields make it shorter.

    Args:
      run: a run whose step need not be compiled.
      batch: a step's batches by stream name, from `Run.shard`.
      steps: number of steps of the epoch.

    Returns:
      One line; "" on an accelerator, for a small model, and for an epoch below ten minutes.
    """
    config = run.config
    if not run.replicas.on_cpu or config.model.embed_dim < _LARGE:
        return ""
    operations = run.step_operations(batch) * run.replicas.local_count
    seconds = steps * operations / (_EFFICIENCY * operations_per_second())
    if seconds < _LONG_SECONDS:
        return ""
    smaller = ["model.embed_dim=256"]
    smaller += ["model.sim_dim=64"] if config.model.head in ("sgr", "saf") else []
    smaller += ["train.batch_size=32"] if config.train.batch_size > 32 else []
    smaller += ["data.train_images=2000"] if len(run.data.train.images) > 2000 else []
    fields = " ".join(f"--config.{field}" for field in smaller)
    hours, minutes = seconds / 3600, seconds / 60
    time = f"{hours:.1f} hours" if hours >= 2 else f"{minutes:.0f} minutes"
    return (
        f"an epoch will take about {time} on this CPU, {steps:,} steps of {seconds / steps:.1f} s; "
        f"much less with {fields}"
    )
