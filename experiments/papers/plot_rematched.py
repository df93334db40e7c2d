"""Pictures of mismatched pairs with their stored and their rematched captions (L2RM Fig. 5).

python -m experiments.papers.plot_rematched runs/scenes/l2rm-saf-image0.6-seed0 --out=figures

Shows random pairs that the run's best model calls mismatched and whose mass was transported. The
upper row has the picture with its stored caption. The lower row has the caption of the batch that
received most of the picture's mass, under the picture that this caption was written for. In half of
the examples both pictures are the same; the title says how often that happens among all transported
pairs. Only `scenes` has pictures to show.
"""

import textwrap
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.figure import (
    MATCHED,
    MISMATCHED,
    figure_parser,
    save,
    show_scene,
    title,
    train_pictures,
)
from experiments.papers.rematching import Rematched, rematch
from experiments.script import start
from l2rm_jax.errors import ConfigError

EXAMPLES = 6
LINE_WIDTH = 27  # characters
MARKS = {True: ("✓", MATCHED), False: ("✗", MISMATCHED)}


class Example(NamedTuple):
    """A transported pair."""

    image: int  # row of its picture
    stored: int  # row of its stored caption
    rematched: int  # row of the caption that received most of the mass
    share: float  # share of the image's moved mass which that caption received


def main() -> None:
    arguments = figure_parser(__doc__, "a finished run on scenes").parse_args()
    save(plot(rematch(arguments.workdir)), arguments.out, "rematched")


def transported_pairs(rematched: Rematched) -> list[Example]:
    """Return every transported pair; images of the queue have no pair in the batch."""
    examples = []
    for batch in rematched.alignments:
        for row in np.flatnonzero(batch.transported[: len(batch.pairs)]):
            best = int(batch.targets[row].argmax())
            share = float(batch.targets[row, best])
            examples.append(
                Example(
                    int(batch.images[row]), int(batch.pairs[row]), int(batch.pairs[best]), share
                )
            )
    return examples


def plot(rematched: Rematched) -> Figure:
    """Plot random examples.

    Raises:
      ConfigError: nothing is transported, or the data are not `scenes`.
    """
    world = train_pictures(rematched.config)
    pairs = transported_pairs(rematched)
    if not pairs:
        raise ConfigError("no pair had more than half of its mass transported: nothing to show")
    own = rematched.train.caption_image  # the picture that each caption was written for
    right = [pair for pair in pairs if own[pair.rematched] == pair.image]
    wrong = [pair for pair in pairs if own[pair.rematched] != pair.image]
    shown = _draw(right, wrong, np.random.default_rng(rematched.config.seed))
    figure = Figure(figsize=(2.2 * len(shown), 6.6), dpi=100)
    figure.suptitle(
        f"{title(rematched.config)}\n{len(pairs)} transported pairs, {len(right)} of them to a "
        "caption of the same picture; ✓ written for the upper picture, ✗ for another"
    )
    panels = figure.subplots(2, len(shown), squeeze=False)
    panels[0, 0].set_ylabel("picture of the pair")
    panels[1, 0].set_ylabel("picture of the rematched caption")
    for (upper, lower), example in zip(panels.T, shown, strict=True):
        described = world[own[example.rematched]]
        for axes, scene, name, caption in [
            (upper, world[example.image], "stored", example.stored),
            (lower, described, f"rematched, {example.share:.2f}", example.rematched),
        ]:
            show_scene(axes, scene)
            mark, colour = MARKS[bool(own[caption] == example.image)]
            text = textwrap.fill(rematched.train.captions[caption], LINE_WIDTH)
            axes.set_xlabel(f"{mark} {name}:\n{text}", color=colour, fontsize=8)
    return figure


def _draw(right: list, wrong: list, rng: np.random.Generator) -> list[Example]:
    """Draw `EXAMPLES` pairs, half of each kind if there are enough of both."""
    few = min(len(right), max(EXAMPLES // 2, EXAMPLES - len(wrong)))
    kinds = [(right, few), (wrong, min(len(wrong), EXAMPLES - few))]
    return [kind[i] for kind, n in kinds for i in rng.choice(len(kind), n, replace=False)]


if __name__ == "__main__":
    start(main)
