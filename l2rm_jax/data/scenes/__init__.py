"""The built-in data set `scenes`: pictures, region features and captions, generated from a seed.

`world` samples random scenes, `captions` describes them in English, `drawing` draws them, and
`splits` generates whole splits with features that imitate an object detector's. May import only
`errors`.
"""

from l2rm_jax.data.scenes.drawing import draw, write_png
from l2rm_jax.data.scenes.splits import NOTHING, REGIONS, SPLITS, Scenes, generate
from l2rm_jax.data.scenes.world import Scene, Thing

__all__ = [
    "NOTHING",
    "REGIONS",
    "SPLITS",
    "Scene",
    "Scenes",
    "Thing",
    "draw",
    "generate",
    "write_png",
]
