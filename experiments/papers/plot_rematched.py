"""Pictures of mismatched pairs with their stored and their rematched captions (L2RM Fig. 5).

python -m experiments.papers.plot_rematched runs/scenes/l2rm-saf-image0.6-seed0 --out=figures
python -m experiments.papers.plot_rematched runs/scenes --out=figures --pair=46

Shows random pairs that the run's best model calls mismatched and whose mass was transported. The
upper row has the picture with its stored caption. The lower row has the caption of the batch that
received most of the picture's mass, under the picture that this caption was written for. In half of
the examples both pictures are the same; the title says how often that happens among all transported
pairs. --pair=N draws a single pair instead, as the README shows it: one of those whose new caption
was written for the picture, from 0. Only `scenes` has pictures to show.
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
LINE_WIDTH, PAIR_LINE_WIDTH = 27, 44  # characters
MARKS = {True: ("✓", MATCHED), False: ("✗", MISMATCHED)}


class Example(NamedTuple):
    """A transported pair."""

    image: int  # row of its picture
    stored: int  # row of its stored caption
    rematched: int  # row of the caption that received most of the mass
    share: float  # share of the image's moved mass which that caption received


def main() -> None:
    parser = figure_parser(__doc__, "a finished run on scenes")
    parser.add_argument("--pair", type=int, help="draw this pair alone, from 0")
    arguments = parser.parse_args()
    rematched = rematch(arguments.workdir)
    if arguments.pair is None:
        save(plot(rematched), arguments.out, "rematched")
    else:
        save(plot_pair(rematched, arguments.pair), arguments.out, "pair")


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


def plot_pair(rematched: Rematched, number: int) -> Figure:
    """Draw the pair of this number.

    Raises:
      ConfigError: the data are not `scenes`, or there are too few such pairs.
    """
    pictures = train_pictures(rematched.config)
    train = rematched.train
    own = train.caption_image  # the picture that each caption was written for
    moved = transported_pairs(rematched)
    right = [each for each in moved if own[each.stored] != each.image == own[each.rematched]]
    if not 0 <= number < len(right):
        raise ConfigError(f"--pair: {number}, found {len(right)} pairs with a right new caption")
    pair = right[number]
    figure = Figure(figsize=(6.4, 2.1), dpi=125)
    left, text = figure.subplots(1, 2, width_ratios=[1, 2])
    show_scene(left, pictures[pair.image])
    text.axis("off")
    for y, label, caption, colour in (
        (0.95, "✗ stored with this picture:", pair.stored, MISMATCHED),
        (0.42, "✓ given to it by transport:", pair.rematched, MATCHED),
    ):
        words = textwrap.fill(train.captions[caption], PAIR_LINE_WIDTH)
        text.text(0, y, label, color=colour, fontsize=11, va="top", weight="bold")
        text.text(0.03, y - 0.16, words, color=colour, fontsize=12, va="top")
    return figure


if __name__ == "__main__":
    start(main)
