"""Flickr30K with few paired images, the settings of RCSL's authors (RCSL Tab. 1 and 2).

python -m l2rm_jax.main --config=configs/f30k_semi_paired.py --config.data.path=DIR
python -m l2rm_jax.main --config=configs/f30k_semi_paired.py:500 --config.data.path=DIR
python -m l2rm_jax.main --config=configs/f30k_semi_paired.py --config.method=triplet \
    --config.data.path=DIR    # of the paired images alone

5000 of the 29,000 training images keep their 25,000 captions ("25K"), or 500 their 2500 ("2.5K");
which ones, --config.mismatch.seed says. DIR as in `configs/f30k.py`. The authors start from GloVe
vectors, so do not expect their numbers.
"""

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError


def get_config(arg: str | None = None):
    config = defaults.default()
    config.data.name = "f30k"
    config.evaluation.protocol = "f30k-1k"
    config.method = "rcsl"
    config.mismatch.protocol = "semi_paired"
    config.mismatch.paired_images = 5000
    config.model.head = "aggregate"
    config.model.dropout = 0.1
    config.optim.learning_rate = 5e-4
    config.optim.decay_epochs = 8
    config.optim.weight_decay = 0.01
    config.train.batch_size = 256
    config.train.warmup_epochs = 25
    config.train.epochs = 15
    if arg == "500":
        config.mismatch.paired_images = 500
    elif arg:
        raise ConfigError(f"f30k_semi_paired:{arg}: the only variant is f30k_semi_paired:500")
    return config
