"""Train on your own embeddings (CLIP, SigLIP, ...), with sizes that suit a CPU.

l2rm --config=embeddings --data=DIR

DIR holds {train,dev,test}_ims.npy and {train,dev,test}_caps.npy: one or several vectors per image
and per caption. No mismatch is added.
"""

from l2rm_jax import config as defaults


def get_config():
    config = defaults.default()
    config.data.name = "embeddings"
    config.model.head = "vse"
    config.model.embed_dim = 256
    config.model.sim_dim = 64
    config.optim.learning_rate = 5e-4
    config.optim.decay_epochs = 6
    defaults.set_epochs(config, warmup=4, epochs=8)
    return config
