"""One mismatched picture, its stored caption and the caption that transport gives it instead.

l2rm --workdir=runs/scenes
python -m experiments.papers.plot_pair runs/scenes --out=figures --number=46

Of the pairs that the run's best model calls mismatched and transport moves, one whose new caption
was written for the picture. The README shows it. Only `scenes` has pictures to show.
"""

import textwrap

from matplotlib.figure import Figure

from experiments.figure import (
    MATCHED,
    MISMATCHED,
    figure_parser,
    save,
    show_scene,
    train_pictures,
)
from experiments.papers.plot_rematched import transported_pairs
from experiments.papers.rematching import Rematched, rematch
from experiments.script import start
from l2rm_jax.errors import ConfigError

LINE_WIDTH = 44  # characters


def main() -> None:
    parser = figure_parser(__doc__, "a finished run on scenes")
    parser.add_argument("--number", type=int, default=0, help="which pair, from 0")
    arguments = parser.parse_args()
    save(plot(rematch(arguments.workdir), arguments.number), arguments.out, "pair")


def plot(rematched: Rematched, number: int = 0) -> Figure:
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
        raise ConfigError(f"--number: {number}, found {len(right)} pairs with a right new caption")
    pair = right[number]
    figure = Figure(figsize=(6.4, 2.1), dpi=125)
    left, text = figure.subplots(1, 2, width_ratios=[1, 2])
    show_scene(left, pictures[pair.image])
    text.axis("off")
    for y, label, caption, colour in (
        (0.95, "✗ stored with this picture:", pair.stored, MISMATCHED),
        (0.42, "✓ given to it by transport:", pair.rematched, MATCHED),
    ):
        words = textwrap.fill(train.captions[caption], LINE_WIDTH)
        text.text(0, y, label, color=colour, fontsize=11, va="top", weight="bold")
        text.text(0.03, y - 0.16, words, color=colour, fontsize=12, va="top")
    return figure


if __name__ == "__main__":
    start(main)
