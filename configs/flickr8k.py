"""Train on Flickr8k with grid features: a small real data set, with sizes that suit a CPU.

l2rm --config=flickr8k --data=DIR
l2rm --config=flickr8k:linear --data=DIR

DIR holds {train,dev,test}_ims.npy (int8), ims_scale.npy and {train,dev,test}_caps.txt. Training
uses the first 2000 images (10,000 pairs); --config.data.train_images=0 takes all. No published
results use these settings.

`flickr8k:linear` judges the pairs by cross-fitting, fits the head `linear` to the matched and the
rematched ones, and trains it further with InfoNCE.
"""

from l2rm_jax import config as defaults


def get_config(arg: str | None = None):
    defaults.check_variant("flickr8k", arg, "linear")
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
    if arg == "linear":
        config.method, config.model.head = "infonce", "linear"
        config.model.dropout = 0.5
        config.loss.tau = 0.1
        config.optim.learning_rate = 1e-4
        config.optim.decay_epochs = 12
        config.train.draw = "rematched"
        config.train.batch_size = 512
        defaults.set_epochs(config, warmup=0, epochs=12)
    return config
