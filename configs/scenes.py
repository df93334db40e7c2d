"""Train on `scenes`, the built-in data set; the default of `l2rm`.

l2rm --config=scenes
l2rm --config=scenes:quick

The first takes some minutes on a laptop CPU. `scenes:quick` takes about a minute and only shows
that every part works; its recalls say nothing about the method.
"""

from l2rm_jax.config import get_config

__all__ = ["get_config"]
