"""Recommended settings for data with mismatched captions, at any mismatch rate.

l2rm --config=recipes:linear --data=DIR
l2rm --config=recipes:recall --data=DIR
l2rm --config=recipes:pretrained --data=DIR --pretrained=BERT_DIR

`recipes:linear` is for small data, for large galleries, and for a first look at any data: two
linear maps, one vector per image and per caption, trained in minutes. Cross-fitting judges the
pairs, transport rematches the suspicious ones, a fit in closed form initialises the maps, and
InfoNCE trains them further. `l2rm --data=DIR` uses this recipe for imported data. Its settings were
chosen by validation on Flickr8k and are the same for all rates (experiments/RESULTS.md).

`recipes:recall` is for the best recall: it averages the scores of two such networks. A run takes
1.6 times as long, and the best recalls are slightly better.

`recipes:pretrained` is `recipes:linear` on the vectors of a frozen pretrained encoder, which is
much better than words on small data. With tens of thousands of pairs, training the encoder is
better still: --config.optim.text_rate=0.2 (l2rm_jax/models/pretrained/README.md).
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
        config.model.text_encoder = "bert"  # or the encoder in --pretrained
        config.model.text_states = config.model.image_states = "vector"
        config.optim.text_rate = config.optim.image_rate = 0.0
    defaults.set_epochs(config, warmup=0, epochs=12)
    return config
