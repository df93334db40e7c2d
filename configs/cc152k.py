"""Train on CC152K, web pairs that are mismatched by nature, with the settings of several methods.

l2rm --config=cc152k --data=DIR --config.model.head=sgr
l2rm --config=cc152k:rcl --data=DIR

DIR holds the files of `cc152k_precomp`: captions as .tsv, one per image. No mismatch is added, and
a pair may be rematched with itself, as in the authors' runs on these data (L2RM suppl. D.1 and
Tab. 1).

`cc152k:rcl` is the method RCL, with the number of epochs of its authors' script and the paper's
temperature (the script gives none). Its authors report a test rSum of 344.5 (SAF), 346.4 (SGR) and
364.4 (mean of both).

`cc152k:decl`, `cc152k:ncr`, `cc152k:bicro` and `cc152k:cream` have the settings of those methods'
public code.
"""

from l2rm_jax import config as defaults
from l2rm_jax import settings


def get_config(arg: str | None = None):
    defaults.check_variant("cc152k", arg, "rcl", *settings.COMPARED["cc152k"])
    config = defaults.default()
    config.data.name = "cc152k"
    config.evaluation.protocol = "cc152k-1k"
    config.l2rm.epsilon = 0.07
    config.l2rm.mask = "none"
    config.optim.decay_epochs = 20
    defaults.set_epochs(config, warmup=10, epochs=40)
    if arg == "rcl":
        config.method = "rcl"
        defaults.set_epochs(config, warmup=0, epochs=40)
    elif arg in settings.COMPARED["cc152k"]:
        settings.use_compared(config, "cc152k", arg)
    return config
