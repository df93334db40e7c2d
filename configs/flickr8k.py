"""Train on Flickr8k with grid features: a small real data set, with sizes that suit a CPU.

l2rm --config=flickr8k --data=DIR
l2rm --config=flickr8k:vectors --data=VECTORS

DIR holds {train,dev,test}_ims.npy (int8), ims_scale.npy and {train,dev,test}_caps.txt. Training
uses the first 2000 images (10,000 pairs); --config.data.train_images=0 takes all. No published
results use these settings.

`flickr8k:vectors` is for one vector per image and per caption, which `experiments.papers.vectors`
computes from DIR with a pretrained encoder: head `vse`, larger batches, a run of a minute.
"""

from l2rm_jax import config as defaults


def get_config(arg: str | None = None):
    defaults.check_variant("flickr8k", arg, "vectors")
    config = defaults.default()
    config.data.name = "flickr8k"
    config.data.train_images = 2000
    config.mismatch.rate = 0.4
    config.model.head = "saf"
    config.model.embed_dim = 256
    config.model.sim_dim = 64
    config.l2rm.epsilon = 0.01
    config.optim.learning_rate = 5e-4
    config.optim.decay_epochs = 6
    config.train.batch_size = 64
    defaults.set_epochs(config, warmup=4, epochs=10)
    if arg == "vectors":
        config.model.head = "vse"
        config.train.batch_size = 128
    return config
