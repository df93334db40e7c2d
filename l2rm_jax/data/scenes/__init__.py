"""The built-in data set `scenes`: pictures, region features and captions, generated from a seed.

`world` draws the pictures, `captions` words them, `splits` makes features that imitate a
detector's. Nothing of the rest of the package is needed but `errors`.
"""

from l2rm_jax.data.scenes.splits import Scenes, generate
from l2rm_jax.data.scenes.world import Scene, Thing, draw, write_png

__all__ = ["Scene", "Scenes", "Thing", "draw", "generate", "write_png"]
