"""CC152K, whose pairs are mismatched by nature, the paper's settings (L2RM suppl. D.1 and Tab. 1).

python -m l2rm_jax.main --config=configs/cc152k.py --config.data.path=DIR --config.model.head=sgr

DIR holds the files of `cc152k_precomp` (captions as .tsv, one an image). No mismatch is added, and
pairs may be rematched with themselves, as in the authors' runs on this data.

`configs/cc152k.py:rcl` is RCL with the epochs of its authors' script and the paper's temperature
(the script gives none); they report a test rSum of 344.5 (SAF), 346.4 (SGR), 364.4 (both).
"""

from l2rm_jax import config as defaults


def get_config(arg: str | None = None):
    defaults.check_variant("cc152k", arg, "rcl")
    config = defaults.default()
    config.data.name = "cc152k"
    config.evaluation.protocol = "cc152k-1k"
    config.mismatch.rate = 0.0
    config.l2rm.epsilon = 0.07
    config.l2rm.mask = "none"
    config.optim.decay_epochs = 20
    config.train.warmup_epochs = 10
    config.train.epochs = 40
    if arg == "rcl":
        config.method = "rcl"
        config.train.warmup_epochs, config.train.epochs = 0, 40
    return config
