"""What a run shows on the screen: its first lines, and the columns of its table of epochs."""

import numpy as np

from l2rm_jax.console import EpochTable
from l2rm_jax.data.word_vectors import describe_unknown
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.run.health import chance_rsum
from l2rm_jax.run.run import Run


def describe(run: Run, replicas: Replicas) -> str:
    """Lines of text about a run: what it trains on, and what was done to the pairs.

    Args:
      run: the run.
      replicas: the devices that it trains on.
    """
    config, train, dev = run.config, run.data.train, run.data.dev
    chance, _ = chance_rsum(len(dev.images), dev.captions_per_image)
    lines = [
        f"{config.data.name}: {len(train.images):,} images, {len(train):,} captions; "
        f"{config.method}, {config.model.head}; "
        f"dev {len(dev.images):,} images (chance: {chance:.1f})",
        *run.data.mismatch.sentences(),
    ]
    if clipped := np.count_nonzero(train.lengths > config.data.max_words):
        lines.append(f"{clipped:,} training captions are clipped at {config.data.max_words} words")
    if run.data.word_vectors is not None:
        lines.append(describe_unknown(run.data.word_vectors))
    if run.method.networks > 1:
        lines.append(f"{run.method.networks} networks, whose similarities are averaged")
    if len(replicas) > 1:
        lines.append(f"{len(replicas)} devices on {replicas.share.hosts} host(s)")
    return "\n".join(lines)


def epoch_table(run: Run) -> EpochTable:
    """The table of epochs, with the columns that the run's method fills."""
    return EpochTable(
        run.total_epochs,
        splits=run.method.splits,
        knows_truth=not run.data.train.matched.all(),
        moves_mass=run.method.moves_mass,
    )
