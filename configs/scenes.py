"""The built-in data set; what `python -m l2rm_jax.main` runs without `--config`.

python -m l2rm_jax.main --config=configs/scenes.py
python -m l2rm_jax.main --config=configs/scenes.py:quick    # a minute, shows the whole path
"""

from l2rm_jax.config import get_config

__all__ = ["get_config"]
