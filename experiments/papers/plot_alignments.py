"""Sorted rematching targets of transported and other images (L2RM suppl. Fig. 1).

python -m experiments.papers.plot_alignments runs/scenes/l2rm-saf-image0.6-seed0 --out=figures

Passes once over the pairs that the run's best model calls mismatched. Each image's row of the plan
is normalised as in the rematching loss and sorted; the figure shows the mean of the sorted rows. An
image counts as transported if more than half of its mass moves.
"""

import numpy as np
from matplotlib.figure import Figure

from experiments.figure import PALETTE, figure_parser, save, title
from experiments.papers.rematching import Rematched, rematch
from experiments.script import start


def main() -> None:
    arguments = figure_parser(__doc__, "a finished run").parse_args()
    save(plot(rematch(arguments.workdir)), arguments.out, "alignments")


def plot(rematched: Rematched) -> Figure:
    targets = np.concatenate([alignment.targets for alignment in rematched.alignments])
    transported = np.concatenate([alignment.transported for alignment in rematched.alignments])
    captions = targets.shape[1]
    figure = Figure(figsize=(5.6, 5.4))
    figure.suptitle(
        f"{title(rematched.config)}\nimage to caption, {len(rematched.alignments)} batches\n"
        "each row is scaled to a sum of 1, however little of its mass moved"
    )
    for axes, which, colour, name in zip(
        figure.subplots(2, 1, sharex=True),
        (transported, ~transported),
        PALETTE,
        ("transported", "not transported"),
        strict=False,
    ):
        axes.set(title=f"{name}: {which.sum()} images", ylabel="mean alignment")
        if which.any():
            ranked = -np.sort(-targets[which], axis=1)
            axes.bar(np.arange(1, captions + 1), ranked.mean(0), width=0.85, color=colour)
        axes.axhline(1 / captions, color="black", linestyle="--", linewidth=1, label="uniform")
        axes.legend()
    axes.set_xlabel(f"rank of the caption among the {captions} of the batch")
    return figure


if __name__ == "__main__":
    start(main)
