"""Rematch the pairs that a finished run of L2RM calls mismatched, for the figures."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import EpochPlan, base, l2rm
from l2rm_jax.run.config_file import read_config
from l2rm_jax.run.initialise import open_run
from l2rm_jax.run.inputs import read_data

TRANSPORTED = 0.5  # an image counts as transported if more than this share of its mass moves


class Alignment(NamedTuple):
    """The transport plan of a batch, as the rematching loss uses it."""

    images: Int[np.ndarray, " Q"]  # rows of the stored images
    pairs: Int[np.ndarray, " B"]  # rows of the pairs; pair b is image b with caption b
    plan: Float[np.ndarray, "Q B"]  # transported mass

    @property
    def transported(self) -> Bool[np.ndarray, " Q"]:
        """Return for each image whether more than half of its mass moved."""
        return self.plan.sum(1) * self.plan.shape[1] > TRANSPORTED

    @property
    def targets(self) -> Float[np.ndarray, "Q B"]:
        """Return the rows of the plan, clipped and normalised as in the loss."""
        clipped = np.maximum(self.plan, 1e-10)
        return clipped / clipped.sum(1, keepdims=True)


class Rematched(NamedTuple):
    """A run, and the plans of one pass over the pairs that its best model calls mismatched."""

    config: ConfigDict
    train: TrainPairs
    alignments: list[Alignment]


def rematch(workdir: Path) -> Rematched:
    """Split the training pairs with the best model and rematch the mismatched ones.

    Raises:
      ConfigError: the run has another method, or its split calls no pair mismatched.
    """
    config = read_config(workdir)
    if config.method != "l2rm":
        raise ConfigError(f"{workdir}: found a run of {config.method}, expected one of l2rm")
    epoch = config.train.warmup_epochs + config.train.epochs
    with open_run(config, read_data(config, workdir), workdir, Replicas()) as run:
        run.restore_best()
        split = run.method.plan(run.score_pairs(epoch), run.data.train, epoch)
        if "mismatched" not in split.streams:
            raise ConfigError(f"{workdir}: the split calls no pair mismatched")

        def align(state, batch):
            key = base.step_key(state, base.DROPOUT_B)
            params = state.params
            sims, stats = base.forward(run.model, params, state.batch_stats, batch, key)
            settings = config.l2rm
            return l2rm.rematch(run.model, settings, state, params, stats, batch, sims, key)[0]

        plan = EpochPlan({"mismatched": split.streams["mismatched"]})
        alignments = [
            Alignment(batch.image_index, batch.pair_index, np.asarray(run.apply(align, batch)))
            for batch in (step["mismatched"] for step in run.stream(plan, epoch).iterate())
        ]
        return Rematched(config, run.data.train, alignments)
