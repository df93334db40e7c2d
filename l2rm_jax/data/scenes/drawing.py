"""Draw a scene as a picture, and write it into a PNG file."""

from pathlib import Path

import numpy as np
from PIL import Image

from l2rm_jax.data.scenes.world import SHAPES, Scene

PIXELS = 192  # width and height of a picture
OVERSAMPLING = 2  # pictures are drawn larger by this factor and averaged, for smooth edges
OUTLINE = 0.012  # width of outlines, in picture widths

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
    """Whether each point is inside `shape`, which fills about [-1, 1]^2 in coordinates (u, v)."""
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
    raise ValueError(f"shape: found {shape!r}, expected one of {sorted(SHAPES)}")


def texture_mask(texture: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Whether each point has the second tone of the texture (lighter, or darker if light)."""
    if texture == "striped":
        return (u + v) * 1.6 % 1 < 0.45
    if texture == "dotted":
        return np.hypot(u * 2.2 % 1 - 0.5, v * 2.2 % 1 - 0.5) < 0.3
    if texture == "checked":
        return (np.floor(u * 2.4) + np.floor(v * 2.4)) % 2 == 0
    return np.zeros(u.shape, bool)


def background_pixels(background: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Picture of only the background, float [H, W, 3], with a faint pattern."""
    pattern = {
        "grass": np.sin(140 * x + 6 * np.sin(9 * y)) * (np.sin(60 * y) > 0.3),
        "snow": 0.4 * np.sin(4 * x + 7 * y),
        "sand": np.sin(93 * x) * np.sin(87 * y + 40 * x),
        "water": np.sin(60 * y + 2.5 * np.sin(14 * x)),
        "wood": np.sin(25 * y) + 0.7 * np.sin(70 * y + 2 * np.sin(5 * x)),
        "night": 4.0 * (np.sin(37 * x + 11 * y) * np.sin(29 * y - 17 * x) > 0.985),
    }[background]
    return np.asarray(BACKGROUND_RGB[background], float) + 11 * pattern[..., None]


def draw(scene: Scene, pixels: int = PIXELS) -> np.ndarray:
    """Draw a scene as an RGB picture, uint8 [pixels, pixels, 3]."""
    side = pixels * OVERSAMPLING
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
    image = image.reshape(pixels, OVERSAMPLING, pixels, OVERSAMPLING, 3).mean((1, 3))
    return image.clip(0, 255).round().astype(np.uint8)


def write_png(scene: Scene, path: str | Path) -> None:
    """Draw a scene into a PNG file."""
    Image.fromarray(draw(scene)).save(path, "PNG")
