"""Every field of a run, with its default and its meaning.

The defaults are the authors' for Flickr30K at the paper's sizes; a file in `configs/` changes
only what its data set needs. Without `--config`, `get_config()` of this file is run.
"""

from ml_collections import ConfigDict

from l2rm_jax.errors import ConfigError


def default() -> ConfigDict:
    """The common defaults; a data set must still be named."""
    config = ConfigDict()
    config.seed = 0  # of initialisation, order of the data, dropout
    config.method = "l2rm"  # l2rm, triplet, infonce, rcsl, rcsl_nc

    config.data = data = ConfigDict()
    data.name = ""  # "scenes" generates the built-in data set; any other name is a label
    data.path = ""  # directory with {train,dev,test}_ims.npy and _caps.txt or _caps.tsv
    data.vocabulary = ""  # json file; "" builds one from train and dev and keeps it in the workdir
    data.min_count = 4  # a rarer word becomes <unk>
    data.split_sentences = False  # before words, as the authors; needs NLTK's punkt model
    data.max_words = 64  # tokens kept of a training caption, <start> and <end> included
    data.train_images = 0  # use only the first n training images (0 = all)
    data.dev_images = 0  # validate on the first n images (0 = all; the authors' code: 200)
    data.test_split = "test"  # "testall" for COCO's 5000 images
    data.scenes_seed = 0  # world of the built-in data set
    data.scenes_train = 1000  # pictures
    data.scenes_dev = 200
    data.scenes_test = 500

    config.mismatch = mismatch = ConfigDict()
    mismatch.protocol = "image"  # "image": RCL, DECL, L2RM; "caption": NCR, BiCro. Not comparable.
    mismatch.rate = 0.4  # share of images (or captions) that are permuted
    # "semi_paired", instead of a rate: so many images keep their captions, the others are permuted
    # and known to be without a pair. triplet, infonce and rcsl then trust the first alone.
    mismatch.paired_images = 0
    mismatch.seed = 0
    mismatch.file = ""  # an index .npy to use instead of generating one

    config.model = model = ConfigDict()
    model.head = "sgr"  # sgr, saf, aggregate (the embedding model of RCSL)
    model.embed_dim = 1024
    model.word_dim = 300
    model.sim_dim = 256
    model.sgr_steps = 3
    model.dropout = 0.4
    model.chunk = 1  # captions scored at once: speed and memory only; 1 is best on a CPU

    config.loss = loss = ConfigDict()
    loss.margin = 0.2  # of the triplet losses
    loss.tau = 0.05  # temperature of everything contrastive

    config.l2rm = l2rm = ConfigDict()
    l2rm.warmup_loss = "rce"  # rce (with InfoNCE), infonce, triplet: L2RM Tab. 4
    l2rm.rematch_loss = "symmetric_kl"  # symmetric_kl, kl, infonce, js: L2RM Tab. 3
    l2rm.cost = "learned"  # learned, cosine: L2RM Tab. 3
    l2rm.mask = "diagonal"  # pairs never rematched with themselves: diagonal, same_image, none
    l2rm.rho = 0.1  # share of the mass that is transported; 1.0 is full transport (Tab. 3)
    l2rm.epsilon = 0.01  # entropic regularisation (lambda in the paper)
    l2rm.solver = "converged"  # "l2rm" stops where the authors' code does, 7-28% too much mass
    l2rm.cost_learning_rate = 2e-6
    l2rm.queue_length = 0  # mismatched images per transport problem (0 = the batch)

    config.rcsl = rcsl = ConfigDict()
    rcsl.tau = 0.03  # temperature of the robust mining loss
    # Of the unpaired images and captions, how many a learning epoch (rcsl's warm-up) takes, drawn
    # anew for each; the authors: 0.2 on COCO.
    rcsl.learning_share = 1.0

    config.optim = optim = ConfigDict()
    optim.learning_rate = 2e-4
    optim.decay_epochs = 15  # x 0.1 every so many epochs after the warm-up
    optim.grad_clip = 2.0  # global norm
    optim.weight_decay = 0.0  # AdamW's

    config.train = train = ConfigDict()
    train.batch_size = 128  # of all devices together
    train.warmup_epochs = 5
    train.epochs = 35  # after the warm-up
    train.checkpoint_steps = 1000  # also save within an epoch, every so many steps
    train.log_steps = 10
    train.tensorboard = False  # also write scalars for TensorBoard, to workdir/tensorboard

    config.evaluation = evaluation = ConfigDict()
    evaluation.batch_size = 128  # captions per tile
    # f30k-1k, coco-1k-5fold, coco-5k, cc152k-1k; custom: all of any test split. With a comma
    # between, several from the same scores; results.json's rsum is the first one's.
    evaluation.protocol = "custom"
    return config.lock()  # a misspelt field is an error in a config file too


def check_fields(config: ConfigDict) -> None:
    """Refuses counts out of range, which would end a run in its middle.

    Raises:
      ConfigError: names the field, what was found and what was expected.
    """
    counts = {
        "train": ("checkpoint_steps", "log_steps"),
        "evaluation": ("batch_size",),
        "optim": ("decay_epochs",),
        "model": ("embed_dim", "word_dim", "sim_dim", "sgr_steps", "chunk"),
    }
    for part, names in counts.items():
        for name in names:
            if config[part][name] < 1:
                raise ConfigError(f"{part}.{name}: {config[part][name]}, expected at least 1")
    if not 0 <= config.rcsl.learning_share <= 1:
        raise ConfigError(
            f"rcsl.learning_share: {config.rcsl.learning_share}, expected 0 <= share <= 1"
        )
    if config.train.batch_size < 2:
        raise ConfigError(
            f"train.batch_size: {config.train.batch_size}, expected at least 2, as a pair is "
            "compared with the others of its batch"
        )
    if min(config.train.warmup_epochs, config.train.epochs) < 0 or (
        config.train.warmup_epochs + config.train.epochs < 1
    ):
        raise ConfigError("train.warmup_epochs, train.epochs: expected at least one epoch in all")


def get_config(arg: str | None = None) -> ConfigDict:
    """The built-in data set at sizes that a laptop CPU trains in minutes.

    Args:
      arg: "quick" makes a run of a minute that shows the whole path and no quality.

    Raises:
      ConfigError: any other argument.
    """
    config = default()
    config.data.name = "scenes"
    config.model.head = "saf"
    config.model.embed_dim = 128
    config.model.word_dim = 64
    config.model.sim_dim = 64
    config.optim.learning_rate = 1e-3
    config.optim.decay_epochs = 8
    config.train.batch_size = 64
    config.train.warmup_epochs = 8
    config.train.epochs = 4
    if arg == "quick":
        config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 100, 20, 50
        config.train.warmup_epochs, config.train.epochs = 2, 2
    elif arg:
        raise ConfigError(f"scenes:{arg}: the only variant is scenes:quick")
    return config
