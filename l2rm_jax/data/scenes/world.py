"""Random scenes: the content of the pictures of the built-in data set.

A scene is a background and a few things, each with a colour, a shape, a size, a texture and a
place. Some values are sampled more often than others, so concepts such as "a red ball" occur in
many pictures. A caption of another picture therefore often fits in part; rematching looks for such
captions.
"""

from dataclasses import dataclass

import numpy as np

# Relative frequency of each value. More values, or more even frequencies, make pictures easier to
# distinguish; with fewer values, more pictures share a description.
COLOURS = {
    "red": 6, "blue": 5, "green": 4, "yellow": 4, "purple": 3,
    "orange": 3, "pink": 2, "black": 2, "white": 2, "brown": 2,
}  # fmt: skip
SHAPES = {
    "ball": 6, "box": 5, "star": 4, "triangle": 4, "ring": 3,
    "heart": 3, "cross": 2, "moon": 2, "diamond": 2, "flower": 2,
}  # fmt: skip
SIZES = {"small": 3, "medium": 4, "large": 3}
TEXTURES = {"plain": 5, "striped": 2, "dotted": 2, "checked": 2}
BACKGROUNDS = {"grass": 4, "snow": 3, "sand": 3, "water": 2, "wood": 2, "night": 2}
THING_COUNT = {2: 3, 3: 4, 4: 3}  # number of things in a scene
INSIDE_SHARE = 0.2  # share of pictures with a small thing inside a large one
CONTAINERS = {"ring": 2, "box": 2, "ball": 1}

RADIUS = {"small": 0.065, "medium": 0.095, "large": 0.13}  # in picture widths
GRID = 3  # things stand on a jittered GRID x GRID board, so that places and relations are clear
JITTER = 0.03  # in picture widths


@dataclass(frozen=True)
class Thing:
    """One object; `x` grows to the right and `y` downwards, both in [0, 1] picture widths."""

    colour: str
    shape: str
    size: str
    texture: str
    x: float
    y: float
    radius: float
    inside: int | None = None  # index of the thing that surrounds this one


@dataclass(frozen=True)
class Scene:
    """The content of one picture."""

    background: str
    things: tuple[Thing, ...]


def pick(rng: np.random.Generator, weights: dict):
    """Sample a key of `weights` in proportion to its value, much faster than `rng.choice`."""
    left = rng.random() * sum(weights.values())
    for key, weight in weights.items():
        left -= weight
        if left < 0:
            return key
    return key  # rounding left a remainder


def sample_thing(rng: np.random.Generator, x: float, y: float, **fixed) -> Thing:
    """Sample a thing near (x, y); `fixed` sets some of its attributes."""
    drawn = {
        "colour": pick(rng, COLOURS),
        "shape": pick(rng, SHAPES),
        "size": pick(rng, SIZES),
        "texture": pick(rng, TEXTURES),
    } | fixed
    dx, dy = rng.uniform(-JITTER, JITTER, 2).tolist()
    radius = RADIUS[drawn["size"]] * rng.uniform(0.93, 1.07)
    return Thing(x=x + dx, y=y + dy, radius=radius, **drawn)


def sample_scene(rng: np.random.Generator) -> Scene:
    """Sample a scene."""
    count = pick(rng, THING_COUNT)
    order = rng.permutation(GRID**2).tolist()
    cells = [((c % GRID + 0.5) / GRID, (c // GRID + 0.5) / GRID) for c in order]
    background = pick(rng, BACKGROUNDS)
    if rng.random() >= INSIDE_SHARE:
        return Scene(background, tuple(sample_thing(rng, *cells[i]) for i in range(count)))
    outer = sample_thing(rng, *cells[0], size="large", shape=pick(rng, CONTAINERS))
    others = {colour: w for colour, w in COLOURS.items() if colour != outer.colour}
    # The inner thing needs another colour than the outer one to be visible.
    inner = sample_thing(rng, outer.x, outer.y, size="small", colour=pick(rng, others), inside=0)
    rest = [sample_thing(rng, *cells[i]) for i in range(1, count - 1)]
    return Scene(background, (outer, inner, *rest))
