"""Generate splits of the built-in data set `scenes`: scenes, region features and captions.

The region features imitate the output of an object detector. The feature of a region is a dense,
nonlinear, noisy function of the region's content, often mixed with the nearest other thing. Some
regions show only background or clutter. A model has to learn which directions in feature space
mean "red", and which region a word refers to.
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

# Difficulty of the features. Noise is Gaussian (standard deviations below); in a code, an attribute
# is 1 if present and 0 if absent.
APPEARANCE_NOISE = 0.1  # of a thing's code, the same in all its regions: limits any model's recall
REGION_NOISE = 0.12  # of the code of each region
PIXEL_NOISE = 0.25  # of the features, which have about unit variance without it
OCCLUSION = 0.35  # largest share of a region's code that comes from the nearest other thing
BACKGROUND_REGIONS = 2
CLUTTER_REGIONS = 2  # false detections, each a faint random thing
CLUTTER_STRENGTH = 0.4  # factor of their codes
NOTHING = -1  # index of the thing that a region of background or clutter shows
NONLINEARITY = 0.35  # scale of the weights before the tanh
HIDDEN = 128
DETECTOR_SEED = 20240  # the detector is the same for every seed and split

CODE_GROUPS = (*COLOURS, *SHAPES, *TEXTURES, *BACKGROUNDS)
CODE_DIM = len(CODE_GROUPS) + len(RADIUS) + 2 * GRID


@dataclass(frozen=True)
class Scenes:
    """A generated split."""

    features: Float32[np.ndarray, "pictures regions dim"]
    captions: list[str]  # five captions per picture, in the order of the pictures
    scenes: list[Scene]
    shown: Int[np.ndarray, "pictures regions"]  # index of the thing in each region, or NOTHING


def soft_one_hot(value: float, centres: np.ndarray) -> np.ndarray:
    """Smooth one-hot code of a number: 1 at a centre, close to 0 at the next centre."""
    return np.exp(-(((value - centres) / (centres[1] - centres[0])) ** 2) * 2)


def noiseless_code(scene: Scene, thing: Thing | None, x: float, y: float) -> np.ndarray:
    """Code, float [CODE_DIM], of a region at (x, y) that shows a thing, or only the background."""
    shown = (thing.colour, thing.shape, thing.texture) if thing else (scene.background,)
    groups = np.array([name in shown for name in CODE_GROUPS], float)
    radii = np.array(list(RADIUS.values()))
    size = soft_one_hot(thing.radius, radii) if thing else np.zeros(len(radii))
    board = (np.arange(GRID) + 0.5) / GRID
    return np.concatenate([groups, size, soft_one_hot(x, board), soft_one_hot(y, board)])


def detector_weights() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of the detector, a fixed random map from codes to features."""
    rng = np.random.default_rng(DETECTOR_SEED)
    first = rng.normal(size=(CODE_DIM, HIDDEN)) * NONLINEARITY
    bias = rng.normal(size=HIDDEN) * NONLINEARITY
    second = rng.normal(size=(HIDDEN, FEATURE_DIM)) * (2.0 / np.sqrt(HIDDEN))
    return first, bias, second


def region_codes(rng: np.random.Generator, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Sample noisy codes of the regions of a picture, in random order.

    Every thing has at least one region. Regions left over by background and clutter show random
    things again.

    Returns:
      codes float [REGIONS, CODE_DIM], and the index of the thing that each region shows, or
      `NOTHING`, int [REGIONS].
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
    """Generate the first `pictures` pictures of a split, with five captions each.

    Args:
      pictures: number of pictures, at least 1; a larger split begins with the smaller one.
      seed: 0 or more; another seed gives other pictures, seen by the same detector.
      split: "train", "dev" or "test", which are independent samples of the same distribution.

    Returns:
      Features float32 [pictures, 12, 64], 5 * pictures captions, the scenes, and the things that
      their regions show.

    Raises:
      DataError: an unknown split, no pictures, or a negative seed.
    """
    if split not in SPLITS:
        raise DataError(f"scenes: found the split {split!r}, expected one of {SPLITS}")
    if pictures < 1 or seed < 0:
        raise DataError(
            f"scenes: found pictures={pictures} and seed={seed}, expected at least 1 and at least 0"
        )
    first, bias, second = detector_weights()
    features = np.empty((pictures, REGIONS, FEATURE_DIM), np.float32)
    captions, scenes, shown = [], [], []
    for index in range(pictures):
        # Separate random streams, so that other caption settings do not change the pictures.
        streams = np.random.default_rng([seed, SPLITS.index(split), index]).spawn(3)
        scene = sample_scene(streams[0])
        captions += describe(streams[1], scene)
        codes, things = region_codes(streams[2], scene)
        # One product per picture: the rounding of a larger product could depend on `pictures`.
        clean = np.tanh(codes @ first + bias) @ second
        features[index] = clean + streams[2].normal(size=clean.shape) * PIXEL_NOISE
        scenes.append(scene)
        shown.append(things)
    return Scenes(features, captions, scenes, np.stack(shown))
