"""CC152K, whose pairs are mismatched by nature, the paper's settings (L2RM suppl. D.1 and Tab. 1).

python -m l2rm_jax.main --config=configs/cc152k.py --config.data.path=DIR --config.model.head=sgr

DIR holds the files of `cc152k_precomp` (captions as .tsv, one an image). No mismatch is added, and
pairs may be rematched with themselves, as in the authors' runs on this data.
"""

from l2rm_jax import config as defaults


def get_config():
    config = defaults.default()
    config.data.name = "cc152k"
    config.evaluation.protocol = "cc152k-1k"
    config.mismatch.rate = 0.0
    config.l2rm.epsilon = 0.07
    config.l2rm.mask = "none"
    config.optim.decay_epochs = 20
    config.train.warmup_epochs = 10
    config.train.epochs = 40
    return config
