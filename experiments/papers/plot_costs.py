"""Learned transport costs of matched and mismatched pairs during training (L2RM Fig. 6).

python -m experiments.papers.plot_costs --config=scenes:long --workdir=runs/costs \
    --set mismatch.rate=0.6 --out=figures

Trains or continues the run in --workdir. After every epoch, the learned cost of each training pair
(its diagonal entry in a shuffled batch) is written to `costs/epoch<n>.npz` of the work directory.
The figure shows the first epoch, the end of the warm-up, the middle of the rest and the last epoch.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments.figure import (
    MATCHED,
    MISMATCHED,
    config_of,
    read_epochs,
    save,
    title,
    train_watched,
    watched_parser,
    write_epoch,
)
from experiments.script import start
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import base
from l2rm_jax.methods.cost import cost
from l2rm_jax.run.run import Run

BINS = 60


def main() -> None:
    flags = watched_parser(__doc__).parse_args()
    config = config_of(flags)
    if (config.method, config.l2rm.cost) != ("l2rm", "learned"):
        raise ConfigError(
            f"method and l2rm.cost: found {config.method!r} and {config.l2rm.cost!r}, expected "
            "'l2rm' and 'learned'; nothing else learns a cost"
        )
    train_watched(config, flags.workdir, recorder(flags.workdir))
    save(plot(config, flags.workdir), flags.out, "costs")


def recorder(workdir: Path) -> Callable[[Run, int], None]:
    """Return a hook that writes the cost of every pair after an epoch."""
    pair_cost = functools.cache(_pair_cost)  # one function per run, so that it compiles once

    def record(run: Run, epoch: int, _: Mapping[str, float]) -> None:
        values = run.score_pairs(epoch)(pair_cost(run))
        write_epoch(workdir, "costs", epoch, cost=values, matched=run.data.train.matched)

    return record


def _pair_cost(run: Run) -> Callable:
    def score(state, batch):
        """Return the cost between each pair's image and its stored caption, [B]."""
        return jnp.diagonal(cost(state.own["cost"], base.evaluate(run.model, state, batch)))

    return score


def phases(warmup: int, epochs: int) -> dict[int, str]:
    """Return the titles of the epochs to show, by epoch."""
    shown = {
        1: "epoch 1",
        warmup: f"epoch {warmup}, end of the warm-up",
        warmup + epochs // 2: f"epoch {warmup + epochs // 2}",
        warmup + epochs: f"epoch {warmup + epochs}, end",
    }
    return {epoch: shown[epoch] for epoch in sorted(shown) if epoch > 0}


def plot(config: ConfigDict, workdir: Path) -> Figure:
    """Plot the histograms.

    Raises:
      DataError: the costs of an epoch were not written.
    """
    shown = phases(config.train.warmup_epochs, config.train.epochs)
    files = read_epochs(workdir, "costs", shown)
    bins = np.linspace(0, max(file["cost"].max() for file in files.values()), BINS)
    figure = Figure(figsize=(3.4 * len(shown), 3.7))
    figure.suptitle(title(config))
    for axes, (epoch, file) in zip(
        figure.subplots(1, len(shown), squeeze=False)[0], files.items(), strict=True
    ):
        for which, colour, name in [
            (file["matched"], MATCHED, "matched"), (~file["matched"], MISMATCHED, "mismatched"),
        ]:  # fmt: skip
            values, label = file["cost"][which], f"{name} ({which.sum()})"
            style = {"bins": bins, "density": True, "histtype": "stepfilled", "edgecolor": colour}
            axes.hist(values, facecolor=(colour, 0.4), label=label, **style)
        axes.set(xlabel="transport cost of the pair", title=shown[epoch])
    figure.axes[0].set_ylabel("density (scaled per panel)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


if __name__ == "__main__":
    start(main)
