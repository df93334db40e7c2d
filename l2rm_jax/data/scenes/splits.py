"""The built-in data set `scenes`: pictures, region features and captions, made from a seed.

No download: the pictures are random scenes (`scene_world`), the captions are worded from them
(`scene_captions`), and the region features imitate a detector's output: each region is a dense,
nonlinear, noisy function of what it shows, often mixed with a neighbour, among regions that show
only background or clutter. A model has to learn which directions mean "red" and which region a
word speaks of.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.data.scenes.captions import describe
from l2rm_jax.data.scenes.world import (
    BACKGROUNDS,
    COLOURS,
    GRID,
    RADIUS,
    SHAPES,
    TEXTURES,
    Scene,
    Thing,
    sample_scene,
    sample_thing,
)
from l2rm_jax.errors import DataError

SPLITS = ("train", "dev", "test")
REGIONS = 12
FEATURE_DIM = 64

# Difficulty of the features (all noise is Gaussian; a present attribute has code 1, an absent 0).
APPEARANCE_NOISE = 0.1  # shared by all regions of a thing: sets the ceiling, cannot be averaged
REGION_NOISE = 0.12  # in the code, drawn anew for each region
PIXEL_NOISE = 0.25  # in the features, which have about unit variance without it
OCCLUSION = 0.35  # a region shows up to this share of the nearest other thing instead of its own
BACKGROUND_REGIONS = 2
CLUTTER_REGIONS = 2  # false detections: a random thing, faintly
CLUTTER_STRENGTH = 0.4
NOTHING = -1  # what a region of background or clutter shows
NONLINEARITY = 0.35  # gain before the tanh: higher bends the code more
HIDDEN = 128
DETECTOR_SEED = 20240  # one detector for every seed and split

CODE_GROUPS = (*COLOURS, *SHAPES, *TEXTURES, *BACKGROUNDS)
CODE_DIM = len(CODE_GROUPS) + len(RADIUS) + 2 * GRID


@dataclass(frozen=True)
class Scenes:
    """A split of the data set."""

    features: Float32[np.ndarray, "pictures regions dim"]
    captions: list[str]  # five per picture, in the order of the pictures
    scenes: list[Scene]
    shown: Int[np.ndarray, "pictures regions"]  # the thing of each region, or NOTHING


def bumps(value: float, centres: np.ndarray) -> np.ndarray:
    """A smooth one-hot code of a number: 1 at a centre, near 0 at the next one."""
    return np.exp(-(((value - centres) / (centres[1] - centres[0])) ** 2) * 2)


def noiseless_code(scene: Scene, thing: Thing | None, x: float, y: float) -> np.ndarray:
    """What a region shows, float [CODE_DIM]: a thing, or only the background at (x, y)."""
    shown = (thing.colour, thing.shape, thing.texture) if thing else (scene.background,)
    groups = np.array([name in shown for name in CODE_GROUPS], float)
    size = bumps(thing.radius, np.array(list(RADIUS.values()))) if thing else np.zeros(len(RADIUS))
    board = (np.arange(GRID) + 0.5) / GRID
    return np.concatenate([groups, size, bumps(x, board), bumps(y, board)])


def detector() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of the fixed random map from codes to features."""
    rng = np.random.default_rng(DETECTOR_SEED)
    first = rng.normal(size=(CODE_DIM, HIDDEN)) * NONLINEARITY
    bias = rng.normal(size=HIDDEN) * NONLINEARITY
    second = rng.normal(size=(HIDDEN, FEATURE_DIM)) * (2.0 / np.sqrt(HIDDEN))
    return first, bias, second


def region_codes(rng: np.random.Generator, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Noisy codes of the regions of a picture in random order, float [REGIONS, CODE_DIM], and the
    thing that each shows, int [REGIONS].

    Every thing has at least one region; what background and clutter leave over are duplicates.
    """
    things = scene.things
    looks = np.stack([noiseless_code(scene, thing, thing.x, thing.y) for thing in things])
    looks += rng.normal(size=looks.shape) * APPEARANCE_NOISE
    duplicates = REGIONS - BACKGROUND_REGIONS - CLUTTER_REGIONS - len(things)
    shown = [*range(len(things)), *rng.integers(len(things), size=duplicates)]
    places = np.array([(thing.x, thing.y) for thing in things])
    gaps = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.eye(len(things)) * 9
    hidden = rng.uniform(0, OCCLUSION, len(shown))[:, None]
    codes = [(1 - hidden) * looks[shown] + hidden * looks[gaps.argmin(1)[shown]]]
    for _ in range(BACKGROUND_REGIONS):
        codes.append(noiseless_code(scene, None, *rng.random(2))[None])
    for _ in range(CLUTTER_REGIONS):
        x, y = rng.random(2)
        false = sample_thing(rng, x, y)
        codes.append(CLUTTER_STRENGTH * noiseless_code(scene, false, x, y)[None])
    codes = np.concatenate(codes)
    codes += rng.normal(size=codes.shape) * REGION_NOISE
    order = rng.permutation(REGIONS)
    return codes[order], np.pad(shown, (0, REGIONS - len(shown)), constant_values=NOTHING)[order]


def generate(pictures: int, seed: int, split: str) -> Scenes:
    """The first `pictures` pictures of a split, with five captions each.

    Args:
      pictures: how many, at least 1; the first n are the same whatever number is asked for.
      seed: a non-negative integer; another seed gives other pictures seen by the same detector.
      split: "train", "dev" or "test": separate draws from the same world.

    Returns:
      features float32 [pictures, 12, 64], captions (5 * pictures), the scenes themselves and what
      their regions show.

    Raises:
      DataError: an unknown split, no pictures, or a negative seed.
    """
    if split not in SPLITS:
        raise DataError(f"scenes: unknown split {split!r}, expected one of {SPLITS}")
    if pictures < 1 or seed < 0:
        raise DataError(
            f"scenes: pictures = {pictures} and seed = {seed}, expected at least 1 and at least 0"
        )
    first, bias, second = detector()
    features = np.empty((pictures, REGIONS, FEATURE_DIM), np.float32)
    captions, scenes, shown = [], [], []
    for index in range(pictures):
        # Separate streams: a change of the captions' settings leaves the pictures as they were.
        streams = np.random.default_rng([seed, SPLITS.index(split), index]).spawn(3)
        scene = sample_scene(streams[0])
        captions += describe(streams[1], scene)
        codes, things = region_codes(streams[2], scene)
        # One product per picture: a larger one could round differently with the number asked for.
        clean = np.tanh(codes @ first + bias) @ second
        features[index] = clean + streams[2].normal(size=clean.shape) * PIXEL_NOISE
        scenes.append(scene)
        shown.append(things)
    return Scenes(features, captions, scenes, np.stack(shown))
