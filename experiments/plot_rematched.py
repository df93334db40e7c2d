"""Pictures of mismatched pairs with the captions that transport finds for them (L2RM Fig. 5).

python -m experiments.plot_rematched runs/scenes/l2rm-saf-image0.6-seed0 --out=figures

Of the pairs that the run's best model calls mismatched, the transported ones: the picture, the
caption stored with it, and the caption in its batch that receives most of its mass, beside the
picture which that one was written for. Half of the examples, drawn at random, are such where the
two pictures are the same; the title says how many there are. Only `scenes` has pictures to show.
"""

import argparse
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.figure import MATCHED, MISMATCHED, save, title
from experiments.rematching import Rematched, rematch
from experiments.sweep import start
from l2rm_jax.data import scenes
from l2rm_jax.errors import ConfigError

EXAMPLES = 6
LINE = 27  # letters
MARKS = {True: ("✓", MATCHED), False: ("✗", MISMATCHED)}


class Example(NamedTuple):
    """A transported pair: rows of its picture and captions, and the share of mass."""

    image: int
    stored: int
    found: int
    share: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("workdir", type=Path, help="a finished run on scenes")
    parser.add_argument("--out", required=True, type=Path, help="directory of the picture")
    arguments = parser.parse_args()
    save(plot(rematch(arguments.workdir)), arguments.out, "rematched")


def examples(found: Rematched) -> list[Example]:
    """Every transported pair; images of a longer queue have no caption in the batch."""
    examples = []
    for batch in found.alignments:
        for row in np.flatnonzero(batch.transported[: len(batch.pairs)]):
            best = int(batch.targets[row].argmax())
            share = float(batch.targets[row, best])
            examples.append(
                Example(
                    int(batch.images[row]), int(batch.pairs[row]), int(batch.pairs[best]), share
                )
            )
    return examples


def plot(found: Rematched) -> Figure:
    """Raises `ConfigError` where nothing is transported or there are no pictures."""
    data = found.config.data
    if data.name != "scenes":
        raise ConfigError(f"data.name is {data.name!r}: only scenes has pictures to show")
    every = examples(found)
    if not every:
        raise ConfigError("no pair had more than half of its mass transported: nothing to show")
    own = found.train.caption_image  # the picture that each caption was written for
    right = [example for example in every if own[example.found] == example.image]
    wrong = [example for example in every if own[example.found] != example.image]
    shown = _draw(right, wrong, np.random.default_rng(found.config.seed))
    world = scenes.generate(data.scenes_train, data.scenes_seed, "train").scenes
    figure = Figure(figsize=(2.2 * len(shown), 6.6), dpi=100)
    figure.suptitle(
        f"{title(found.config)}\n{len(every)} transported pairs, {len(right)} of them to a caption "
        "of the same picture; ✓ written for the upper picture, ✗ for another"
    )
    panels = figure.subplots(2, len(shown), squeeze=False)
    panels[0, 0].set_ylabel("picture of the pair")
    panels[1, 0].set_ylabel("picture of the rematched caption")
    for (upper, lower), example in zip(panels.T, shown, strict=True):
        described = world[own[example.found]]
        for axes, scene, name, pair in [
            (upper, world[example.image], "stored", example.stored),
            (lower, described, f"rematched, {example.share:.2f}", example.found),
        ]:
            axes.imshow(scenes.draw(scene))
            axes.set(xticks=[], yticks=[])
            mark, colour = MARKS[bool(own[pair] == example.image)]
            text = textwrap.fill(found.train.captions[pair], LINE)
            axes.set_xlabel(f"{mark} {name}:\n{text}", color=colour, fontsize=8)
    return figure


def _draw(right: list, wrong: list, rng: np.random.Generator) -> list[Example]:
    """Half of each kind, or what there is."""
    few = min(len(right), max(EXAMPLES // 2, EXAMPLES - len(wrong)))
    kinds = [(right, few), (wrong, min(len(wrong), EXAMPLES - few))]
    return [kind[i] for kind, n in kinds for i in rng.choice(len(kind), n, replace=False)]


if __name__ == "__main__":
    start(main)
