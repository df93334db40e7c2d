"""Similarities of true and false positives and negatives during training (RCL Fig. 4).

python -m experiments.papers.plot_similarities --config=scenes --workdir=runs/similarities \
    --set method=rcl --set mismatch.rate=0.6 --out=figures

Trains or continues the run in --workdir. After every epoch, the similarities of each training batch
are sorted into four kinds and their histograms written to `similarities/epoch<n>.npz` of the work
directory: stored pairs that match (true positives) and that do not (false positives), and other
combinations that do not match (true negatives) and that do (false negatives: captions of the same
image, or the swapped caption where it belongs). The figure shows the first, a middle and the last
epoch.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments.figure import PALETTE, save, title
from experiments.papers.sweep import add_settings, load_config, start
from l2rm_jax.devices import parallel
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.methods import base
from l2rm_jax.run.config_file import check_workdir, with_changes
from l2rm_jax.run.run import Run
from l2rm_jax.train import train

BINS = np.linspace(-1, 1, 101)
KINDS = ("true positives", "false positives", "true negatives", "false negatives")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", required=True, help="NAME, FILE.py or FILE.py:VARIANT")
    parser.add_argument("--workdir", required=True, type=Path, help="directory of the run")
    parser.add_argument("--out", required=True, type=Path, help="directory of the figure")
    add_settings(parser, "set")
    arguments = parser.parse_args()
    config = with_changes(load_config(arguments.config), arguments.set)
    check_workdir(arguments.workdir, config)
    if not (arguments.workdir / "results.json").exists():
        train(config, arguments.workdir, on_epoch=recorder(arguments.workdir))
    save(plot(config, arguments.workdir), arguments.out, "similarities")


def recorder(workdir: Path) -> Callable[[Run, int], None]:
    """Return a hook that counts the similarities of an epoch's batches by kind and bin."""
    scores = {}

    def record(run: Run, epoch: int) -> None:
        # One function per run, so that it compiles once.
        score = scores.setdefault(id(run), _score(run))
        found = run.score_pairs(epoch)(score)
        values, rows = found["sims"], found["rows"].astype(int)
        file = file_of(workdir, epoch)
        file.parent.mkdir(exist_ok=True)
        np.savez(file, **dict(zip(KINDS, _counts(run, values, rows), strict=True)))

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


def _counts(run: Run, sims: Float[np.ndarray, "N B"], rows: Int[np.ndarray, "N B"]) -> np.ndarray:
    """Histograms of the four kinds, `[4, bins]`."""
    return np.stack([np.histogram(sims[which], BINS)[0] for which in kinds(run.data.train, rows)])


def kinds(pairs, rows: Int[np.ndarray, "N B"]) -> list[np.ndarray]:
    """Masks `[N, B]` of the kinds: the similarity of image n with caption `rows[n, b]`."""
    own = rows == np.arange(len(rows))[:, None]
    matches = pairs.caption_image[rows] == pairs.stored_image[:, None]
    return [own & matches, own & ~matches, ~own & ~matches, ~own & matches]


def file_of(workdir: Path, epoch: int) -> Path:
    return workdir / "similarities" / f"epoch{epoch}.npz"


def plot(config: ConfigDict, workdir: Path) -> Figure:
    """Plot the histograms.

    Raises:
      DataError: the similarities of an epoch were not written.
    """
    last = config.train.warmup_epochs + config.train.epochs
    shown = sorted({1, (last + 1) // 2, last})
    for epoch in shown:
        if not file_of(workdir, epoch).exists():
            raise DataError(
                f"{file_of(workdir, epoch)}: no such file; the run was trained without this "
                "script, which writes the similarities: use another --workdir"
            )
    figure = Figure(figsize=(3.4 * len(shown), 3.7))
    figure.suptitle(title(config))
    for axes, epoch in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        with np.load(file_of(workdir, epoch)) as counts:
            for kind, colour in zip(KINDS, PALETTE, strict=False):
                total = max(counts[kind].sum(), 1)
                axes.stairs(counts[kind] / total, BINS, color=colour, label=kind)
        axes.set(xlabel="similarity", title=f"epoch {epoch}")
    figure.axes[0].set_ylabel("share of the kind")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


if __name__ == "__main__":
    start(main)
