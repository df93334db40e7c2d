"""Similarities of positive and negative pairs during training, by their truth (RCL Fig. 4).

python -m experiments.papers.plot_similarities --config=scenes --workdir=runs/similarities \
    --set method=rcl --set mismatch.rate=0.6 --out=figures

Trains or continues the run in --workdir. After every epoch, similarities are sorted into kinds and
their histograms written to `similarities/epoch<n>.npz` of the work directory. The figure shows the
first, a middle and the last epoch, and has the three rows of the paper's:

- stored pairs that match (true positives) and that do not (false positives),
- other combinations of a training batch that do not match (true negatives) and that do (false
  negatives: captions of the same image, or the swapped caption where it belongs),
- pairs of the validation split (positive pairs) and its other combinations (negative pairs).

The paper compares losses: run the command for each, with another --workdir and --out.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
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
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices import parallel
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import base
from l2rm_jax.run.run import Run

BINS = np.linspace(-1, 1, 101)
KINDS = ("true positives", "false positives", "true negatives", "false negatives")
DEV_KINDS = ("positive pairs", "negative pairs")
ROWS = {"training pairs": KINDS[:2], "training negatives": KINDS[2:], "validation": DEV_KINDS}


def main() -> None:
    flags = watched_parser(__doc__).parse_args()
    config = config_of(flags)
    train_watched(config, flags.workdir, recorder(flags.workdir))
    save(plot(config, flags.workdir), flags.out, "similarities")


def recorder(workdir: Path) -> Callable[[Run, int], None]:
    """Return a hook that counts similarities by kind and bin: of an epoch's batches, and of dev."""
    scores = {}

    def record(run: Run, epoch: int, _: Mapping[str, float]) -> None:
        # One function per run, so that it compiles once.
        score = scores.setdefault(id(run), _score(run))
        found = run.score_pairs(epoch)(score)
        masks = kinds(run.data.train, found["rows"].astype(int))
        counts = dict(zip(KINDS, _histograms(found["sims"], masks), strict=True))
        dev = run.data.dev
        sims = np.asarray(run.model.bounded(run.score(dev)))
        own = dev.caption_image == np.arange(len(dev.images))[:, None]
        counts |= zip(DEV_KINDS, _histograms(sims, (own, ~own)), strict=True)
        write_epoch(workdir, "similarities", epoch, **counts)

    return record


def _score(run: Run) -> Callable:
    if run.method.networks > 1:
        raise ConfigError(
            f"method: {run.config.method} has {run.method.networks} networks, expected one"
        )

    def score(state, batch):
        """Return each image's similarities with the captions of its batch, and their rows."""
        sims = run.model.bounded(base.evaluate(run.model, state, batch))
        rows = parallel.global_rows(batch.pair_index, run.model.axis_name)
        return {"sims": sims, "rows": jnp.broadcast_to(rows, sims.shape)}

    return score


def _histograms(sims: Float[np.ndarray, "N B"], masks: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Counts `[bins]` of the similarities in each mask; cosines may be above 1 by rounding."""
    return [np.histogram(sims[mask].clip(-1, 1), BINS)[0] for mask in masks]


def kinds(pairs: TrainPairs, rows: Int[np.ndarray, "N B"]) -> list[np.ndarray]:
    """Masks `[N, B]` of `KINDS`: the similarity of image n with caption `rows[n, b]`."""
    own = rows == np.arange(len(rows))[:, None]
    matches = pairs.caption_image[rows] == pairs.stored_image[:, None]
    return [own & matches, own & ~matches, ~own & ~matches, ~own & matches]


def plot(config: ConfigDict, workdir: Path) -> Figure:
    """Plot the histograms.

    Raises:
      DataError: the similarities of an epoch were not written.
    """
    last = config.train.warmup_epochs + config.train.epochs
    shown = read_epochs(workdir, "similarities", sorted({1, (last + 1) // 2, last}))
    figure = Figure(figsize=(3.4 * len(shown), 2.5 * len(ROWS)))
    figure.suptitle(title(config))
    panels = figure.subplots(len(ROWS), len(shown), squeeze=False, sharex=True)
    for column, (epoch, counts) in zip(panels.T, shown.items(), strict=True):
        column[0].set_title(f"epoch {epoch}")
        column[-1].set_xlabel("similarity")
        for axes, shown_kinds in zip(column, ROWS.values(), strict=True):
            draw(axes, {kind: counts[kind] for kind in shown_kinds})
    for axes, (row, _) in zip(panels[:, 0], ROWS.items(), strict=True):
        axes.set_ylabel(f"{row}:\nshare of the kind")
        axes.legend(fontsize=8)
    return figure


def draw(axes: Axes, counts: Mapping[str, np.ndarray]) -> None:
    """Draw the histogram of each kind, as shares."""
    for (kind, number), colour in zip(counts.items(), (MATCHED, MISMATCHED), strict=True):
        axes.stairs(number / max(number.sum(), 1), BINS, color=colour, label=kind)


if __name__ == "__main__":
    start(main)
