"""What the pictures of the built-in data set `scenes` hold, and how to draw them.

A scene is a background and a few things, each with a colour, a shape, a size, a texture and a
place. Common values are drawn more often than rare ones, so that many pictures share concepts
("a red ball"): a caption that belongs to another picture then often fits in part, which is what
rematching looks for.
"""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Relative frequency of each value. More even weights or more values make pictures easier to tell
# apart; fewer values make more pictures share a description.
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
THING_COUNT = {2: 3, 3: 4, 4: 3}  # more things: more to tell pictures apart, more to confuse
INSIDE_SHARE = 0.2  # share of pictures with a small thing inside a large one
CONTAINERS = {"ring": 2, "box": 2, "ball": 1}

RADIUS = {"small": 0.065, "medium": 0.095, "large": 0.13}  # of a picture of width 1
GRID = 3  # things stand on a jittered GRID x GRID board, so that places and relations are clear
JITTER = 0.03


@dataclass(frozen=True)
class Thing:
    """One object; `x` grows to the right and `y` downwards, both in [0, 1]."""

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
    """One picture."""

    background: str
    things: tuple[Thing, ...]


def pick(rng: np.random.Generator, weights: dict):
    """One key of `weights`, drawn in proportion to its value (much faster than `rng.choice`)."""
    left = rng.random() * sum(weights.values())
    for key, weight in weights.items():
        left -= weight
        if left < 0:
            return key
    return key  # rounding left a hair over


def sample_thing(rng: np.random.Generator, x: float, y: float, **fixed) -> Thing:
    """A random thing near (x, y); `fixed` sets some of its attributes."""
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
    """A random picture."""
    count = pick(rng, THING_COUNT)
    order = rng.permutation(GRID**2).tolist()
    cells = [((c % GRID + 0.5) / GRID, (c // GRID + 0.5) / GRID) for c in order]
    background = pick(rng, BACKGROUNDS)
    if rng.random() >= INSIDE_SHARE:
        return Scene(background, tuple(sample_thing(rng, *cells[i]) for i in range(count)))
    outer = sample_thing(rng, *cells[0], size="large", shape=pick(rng, CONTAINERS))
    others = {colour: w for colour, w in COLOURS.items() if colour != outer.colour}
    inner = sample_thing(
        rng, outer.x, outer.y, size="small", colour=pick(rng, others), inside=0
    )  # another colour than its surroundings, or nobody could see it
    rest = [sample_thing(rng, *cells[i]) for i in range(1, count - 1)]
    return Scene(background, (outer, inner, *rest))


# Drawing -----------------------------------------------------------------------------------------

PIXELS = 192
OVERSAMPLING = 2  # drawn larger and averaged: smooth edges
OUTLINE = 0.012  # of the picture's width

RGB = {
    "red": (214, 39, 40), "blue": (31, 90, 200), "green": (34, 150, 60), "yellow": (245, 214, 40),
    "purple": (130, 60, 170), "orange": (250, 130, 20), "pink": (250, 140, 190),
    "black": (30, 30, 30), "white": (252, 252, 252), "brown": (125, 75, 40),
}  # fmt: skip
BACKGROUND_RGB = {
    "grass": (170, 215, 140), "snow": (236, 242, 248), "sand": (238, 221, 170),
    "water": (150, 200, 230), "wood": (205, 165, 120), "night": (45, 45, 90),
}  # fmt: skip


def shape_mask(shape: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Which points belong to `shape`, in coordinates where the shape fills about [-1, 1]^2."""
    r, angle = np.hypot(u, v), np.arctan2(u, -v)  # angle 0 points up
    if shape == "ball":
        return r <= 0.95
    if shape == "box":
        return np.maximum(abs(u), abs(v)) <= 0.85
    if shape == "triangle":
        return (v <= 0.8) & (v >= 2 * abs(u) - 1)
    if shape == "star":
        tip = np.abs((angle / (2 * np.pi / 5) + 0.5) % 1 - 0.5) * 2  # 0 at a tip, 1 in a notch
        return r <= 1.05 / (1 + 1.4 * tip)
    if shape == "ring":
        return (r <= 1) & (r >= 0.62)
    if shape == "heart":
        a, b = 1.2 * u, -1.2 * v + 0.1
        return (a**2 + b**2 - 1) ** 3 <= a**2 * b**3
    if shape == "cross":
        return (np.minimum(abs(u), abs(v)) <= 0.32) & (np.maximum(abs(u), abs(v)) <= 0.95)
    if shape == "moon":
        return (r <= 1) & (np.hypot(u - 0.5, v) >= 0.8)
    if shape == "diamond":
        return abs(u) / 0.7 + abs(v) <= 1
    if shape == "flower":
        return (r <= 0.72 + 0.28 * np.cos(6 * angle)) & (r >= 0.2)
    raise ValueError(f"unknown shape {shape!r}, expected one of {sorted(SHAPES)}")


def texture_mask(texture: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Which points are in the lighter (for light colours: darker) tone of the texture."""
    if texture == "striped":
        return (u + v) * 1.6 % 1 < 0.45
    if texture == "dotted":
        return np.hypot(u * 2.2 % 1 - 0.5, v * 2.2 % 1 - 0.5) < 0.3
    if texture == "checked":
        return (np.floor(u * 2.4) + np.floor(v * 2.4)) % 2 == 0
    return np.zeros(u.shape, bool)


def background_pixels(background: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The empty picture, float [H, W, 3], with a faint pattern."""
    pattern = {
        "grass": np.sin(140 * x + 6 * np.sin(9 * y)) * (np.sin(60 * y) > 0.3),
        "snow": 0.4 * np.sin(4 * x + 7 * y),
        "sand": np.sin(93 * x) * np.sin(87 * y + 40 * x),
        "water": np.sin(60 * y + 2.5 * np.sin(14 * x)),
        "wood": np.sin(25 * y) + 0.7 * np.sin(70 * y + 2 * np.sin(5 * x)),
        "night": 4.0 * (np.sin(37 * x + 11 * y) * np.sin(29 * y - 17 * x) > 0.985),
    }[background]
    return np.asarray(BACKGROUND_RGB[background], float) + 11 * pattern[..., None]


def draw(scene: Scene) -> np.ndarray:
    """The picture as a person would see it, uint8 [192, 192, 3] (RGB)."""
    side = PIXELS * OVERSAMPLING
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    image = background_pixels(scene.background, x, y)
    outline = (235, 235, 235) if scene.background == "night" else (20, 20, 20)
    for thing in sorted(scene.things, key=lambda thing: -thing.radius):  # small ones in front
        u, v = (x - thing.x) / thing.radius, (y - thing.y) / thing.radius
        width = OUTLINE / thing.radius
        inside = shape_mask(thing.shape, u, v)
        rim = np.zeros_like(inside)
        for angle in np.linspace(0, 2 * np.pi, 12, endpoint=False):
            rim |= shape_mask(thing.shape, u + width * np.cos(angle), v + width * np.sin(angle))
        colour = np.asarray(RGB[thing.colour], float)
        tone = 0.4 * colour + 0.6 * (255 if colour.mean() < 190 else 90)
        image[rim] = outline
        image[inside] = colour
        image[inside & texture_mask(thing.texture, u, v)] = tone
    image = image.reshape(PIXELS, OVERSAMPLING, PIXELS, OVERSAMPLING, 3).mean((1, 3))
    return image.clip(0, 255).round().astype(np.uint8)


def write_png(scene: Scene, path: str | Path) -> None:
    """Draw `scene` into a PNG file (8-bit RGB, no filter: the PNG specification, section 5)."""
    image = draw(scene)
    height, width, _ = image.shape
    rows = np.pad(image.reshape(height, -1), ((0, 0), (1, 0))).tobytes()  # filter type 0 each row
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
            body = kind + data
            file.write(struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body)))
