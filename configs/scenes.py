"""Train on `scenes`, the built-in data set; the default of `l2rm`.

l2rm --config=scenes
l2rm --config=scenes:quick
l2rm --config=scenes:long

The first takes two minutes on two CPU cores. `scenes:quick` takes half a minute and only shows that
every part works; its recalls say nothing about the method. `scenes:long` has the larger batches and
the epochs of the tables in `experiments`: about five minutes per run.
"""

from l2rm_jax.config import get_config

__all__ = ["get_config"]
