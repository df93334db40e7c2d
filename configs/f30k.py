"""Flickr30K with region features: L2RM's settings (suppl. D.1 and Tab. 1), and OMIT's (Sec. 4.1).

python -m l2rm_jax.main --config=configs/f30k.py --config.data.path=DIR \
    --config.mismatch.rate=0.4 --config.model.head=sgr
python -m l2rm_jax.main --config=configs/f30k.py:omit --config.data.path=DIR

DIR holds the files of `f30k_precomp`. The published vocabulary and mismatch index, where you have
them: --config.data.vocabulary=f30k_precomp_vocab.json --config.mismatch.file=f30k_precomp_0.4.npy

OMIT's are for any head but SGR and SAF, on pairs as they come (rate 0); with grid features its
authors leave out 0.2 of an image instead of 0.4, and have batches of 128.
"""

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError


def get_config(arg=None):
    config = defaults.default()
    config.data.name = "f30k"
    config.evaluation.protocol = "f30k-1k"
    config.l2rm.epsilon = 0.01
    config.optim.decay_epochs = 15
    config.train.warmup_epochs = 5
    config.train.epochs = 35
    if arg == "omit":
        config.method = "triplet"
        config.mismatch.rate = 0.0
        config.model.head = "omit"
        config.model.dropout = 0.0
        config.model.region_mask = 0.4
        config.model.word_noise = 0.2
        config.loss.margin = 0.05
        config.optim.learning_rate = 5e-4
        config.optim.decay_epochs = 9  # after the warm-up's one: ten at the full rate
        config.optim.weight_decay = 5e-4
        config.train.batch_size = 384
        config.train.warmup_epochs = 1  # without hard negatives
        config.train.epochs = 14
    elif arg:
        raise ConfigError(f"f30k:{arg}: the only variant is f30k:omit")
    return config
