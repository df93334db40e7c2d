"""Recommended settings for data whose captions may belong to other images, at whatever rate.

l2rm --config=recipes:linear --data=DIR
l2rm --config=recipes:recall --data=DIR
l2rm --config=recipes:pretrained --data=DIR --pretrained=BERT_DIR

`recipes:linear` is for small data, for large galleries, and for a first look at any data: two
linear maps, one vector an image and a caption, trained in minutes. Cross-fitting judges the pairs,
transport rematches the doubted ones, a fit in closed form starts the maps, and InfoNCE trains them
further. It is what `l2rm --data=DIR` takes for imported data. Its settings were chosen by
validation on Flickr8k and are the same for all rates (experiments/RESULTS.md).

`recipes:recall` is for the best recall: two such networks, whose scores are averaged. A run takes
1.6 times as long, and the best recalls are a little better.

`recipes:pretrained` is `recipes:linear` on the vectors of a frozen pretrained encoder: on small
data, better than words by far. With tens of thousands of pairs a trained encoder is better still,
--config.optim.text_rate=0.2 (l2rm_jax/models/pretrained/README.md).
"""

from l2rm_jax import config as defaults


def get_config(arg: str | None = None):
    defaults.check_variant("recipes", arg or "linear", "linear", "recall", "pretrained")
    config = defaults.default()
    config.data.name = "data"
    config.method = "infonce"
    config.model.head = "linear"
    config.model.dropout = 0.5
    config.loss.tau = 0.1
    config.optim.learning_rate = 1e-4
    config.optim.decay_epochs = 12
    config.train.draw = "rematched"
    config.train.batch_size = 512
    config.train.networks = 2 if arg == "recall" else 1
    if arg == "pretrained":
        config.model.text_encoder = "bert"  # or what --pretrained finds
        config.model.text_states = config.model.image_states = "vector"
        config.optim.text_rate = config.optim.image_rate = 0.0
    defaults.set_epochs(config, warmup=0, epochs=12)
    return config
