"""Every field of a run, with its default and its meaning.

The defaults are the authors' for Flickr30K at the paper's sizes; a file in `configs/` changes
only what its data set needs. Without `--config`, `get_config()` of this file is run.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.errors import ConfigError


def default() -> ConfigDict:
    """The common defaults; a data set must still be named.

    The default of a new field is what runs did before it, so that an older run directory, whose
    config lacks it, goes on as it was.
    """
    config = ConfigDict()
    config.seed = 0  # of initialisation, order of the data, dropout
    config.method = "l2rm"  # l2rm, rcl, rcsl, rcsl_nc, triplet, infonce

    # Factors of the models' matrix products on a GPU or TPU: float32 (all digits), bfloat16 (the
    # fastest). Parameters, normalisation, softmax, losses and transport are float32 in both.
    config.precision = "float32"

    config.data = data = ConfigDict()
    data.name = ""  # "scenes" generates the built-in data set; any other name is a label
    data.path = ""  # directory with {train,dev,test}_ims.npy and _caps.txt or _caps.tsv
    data.layout = "precomp"  # of that directory; of videos: dual_encoding, experts
    data.features = ""  # of videos: directory in FeatureData, or file of the expert without ending
    data.max_frames = 64  # of a video, evenly spaced; 1 for features that are aggregated
    data.vocabulary = ""  # json file; "" builds one from train and dev and keeps it in the workdir
    data.min_count = 4  # a rarer word becomes <unk>
    data.split_sentences = False  # before words, as the authors; needs NLTK's punkt model
    data.max_words = 64  # tokens kept of a training caption, <start> and <end> included
    data.train_images = 0  # use only the first n training images (0 = all)
    data.dev_images = 0  # validate on the first n images (0 = all; the authors' code: 200)
    data.test_split = "test"  # "testall" for COCO's 5000 images
    # Training pairs that are dropped: none; truth, those known to be mismatched; score, those below
    # filter_value; share, all but that share of them, the best ones.
    data.filter = "none"
    data.filter_scores = ""  # .npy, a score for each stored pair, higher where better matched
    data.filter_value = 0.0
    data.scenes_seed = 0  # world of the built-in data set
    data.scenes_train = 1000  # pictures
    data.scenes_dev = 200  # likewise
    data.scenes_test = 500

    config.mismatch = mismatch = ConfigDict()
    mismatch.protocol = "image"  # "image": RCL, DECL, L2RM; "caption": NCR, BiCro. Not comparable.
    mismatch.rate = 0.4  # share of images (or captions) that are permuted
    # "semi_paired", instead of a rate: so many images keep their captions, the others are permuted
    # and known to be without a pair. triplet, infonce and rcsl then trust the first alone.
    mismatch.paired_images = 0
    mismatch.seed = 0  # of who is permuted; `seed` leaves it alone
    mismatch.file = ""  # an index .npy to use instead of generating one

    config.model = model = ConfigDict()
    model.head = "sgr"  # sgr, saf, omit, cam, vse, pem, aggregate (the model of RCSL)
    model.embed_dim = 1024  # of regions, words and their global vectors
    model.word_dim = 300  # of word embeddings, before the GRU
    model.sim_dim = 256  # of sgr and saf: similarity vectors
    model.sgr_steps = 3  # of sgr: rounds of reasoning
    model.dropout = 0.4  # of word embeddings and global attentions
    model.chunk = 0  # captions scored at once: speed and memory only; 0 is chosen for the device
    model.matching = "partial"  # omit: partial, full, prompt, naive; cam: partial, naive
    model.margins = "uniform"  # of omit: uniform, intra, inter, norm (OMIT Eq. 7)
    model.match_epsilon = 0.02  # of omit: entropic regularisation (lambda in the paper)
    model.pooling = "mean"  # of vse: mean, gpo (VSE-infinity)
    # Share of an image's regions that a training step leaves out; not with sgr and saf.
    model.region_mask = 0.0
    model.word_noise = 0.0  # share of a caption's words that it masks (half), replaces or drops

    config.loss = loss = ConfigDict()
    loss.margin = 0.2  # of the triplet losses
    loss.tau = 0.05  # temperature of everything contrastive but RCSL's mining

    config.l2rm = l2rm = ConfigDict()
    l2rm.warmup_loss = "rce"  # rce (with InfoNCE), infonce, triplet: L2RM Tab. 4
    l2rm.rematch_loss = "symmetric_kl"  # symmetric_kl, kl, infonce, js: L2RM Tab. 3
    l2rm.cost = "learned"  # learned, cosine: L2RM Tab. 3
    l2rm.mask = "diagonal"  # pairs never rematched with themselves: diagonal, same_image, none
    # Share of the mass that is transported; 1.0 is full transport (Tab. 3), 0 is a share that grows
    # with the batch: 0.10 at 128, 0.34 at 512 (see `share_of_batch`).
    l2rm.rho = 0.1
    l2rm.epsilon = 0.01  # entropic regularisation (lambda in the paper)
    l2rm.solver = "converged"  # "l2rm" stops where the authors' code does: too much mass moves
    l2rm.cost_learning_rate = 2e-6  # of the learned cost, by Adam
    l2rm.queue_length = 0  # mismatched images per transport problem (0 = the batch)

    config.rcl = rcl = ConfigDict()
    rcl.loss = "log"  # log, exp, gce, tan, mae: RCL Tab. 6
    rcl.q = 0.2  # exponent of gce, in (0, 1]
    rcl.negatives = 0  # of each query, drawn at random (0 = all of the batch; 1: NL of RCL Tab. 7)
    config.rcsl = rcsl = ConfigDict()
    rcsl.tau = 0.03  # temperature of the robust mining loss
    # Pseudo-pairs: the nearest (the paper), or the largest entries of a transport plan between all
    # unpaired images and captions, under which none is many others' nearest (ours).
    rcsl.search = "nearest"
    # Of the unpaired images and captions, how many a learning epoch (rcsl's warm-up) takes, drawn
    # anew for each; the authors: 0.2 on COCO.
    rcsl.learning_share = 1.0

    config.optim = optim = ConfigDict()
    optim.learning_rate = 2e-4  # of the model, by Adam
    optim.decay_epochs = 15  # x 0.1 every so many epochs after the warm-up
    optim.grad_clip = 2.0  # global norm
    optim.weight_decay = 0.0  # AdamW's

    config.train = train = ConfigDict()
    train.batch_size = 128  # of all devices together
    train.warmup_epochs = 5  # what they train, the method says; the rate decays after them
    train.epochs = 35  # after the warm-up
    train.checkpoint_steps = 1000  # also save within an epoch, every so many steps
    train.log_steps = 10
    # Where a loss or a gradient is not finite, no update is made; then: stop, or skip to go on.
    train.non_finite = "stop"
    train.tensorboard = False  # also write scalars for TensorBoard, to workdir/tensorboard

    config.evaluation = evaluation = ConfigDict()
    evaluation.batch_size = 128  # captions per tile
    # f30k-1k, coco-1k-5fold, coco-5k, cc152k-1k; custom: all of any test split. With a comma
    # between, several from the same scores; results.json's rsum is the first one's.
    evaluation.protocol = "custom"
    # Temperature of a second row: each similarity times its softmax over the queries, which looks
    # at all of them at once. 0 is none; cosines that a loss of tau trained take about that tau.
    evaluation.dual_softmax = 0.0
    return config.lock()  # a misspelt field is an error in a config file too


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key: `train.epochs`."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, ConfigDict | Mapping)
        values |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return values


def check_variant(file: str, arg: str | None, *known: str) -> None:
    """Refuses a variant that a config file does not have (FILE.py:VARIANT).

    Raises:
      ConfigError: names the ones that it has.
    """
    if arg and arg not in known:
        names = ", ".join(f"{file}:{name}" for name in known)
        raise ConfigError(f"{file}:{arg}: no such variant, expected {file} or {names}")


def use_omit(config: ConfigDict) -> None:
    """Sets OMIT's settings for region features, which are the same for Flickr30K and COCO (Sec. 4.1
    of its paper)."""
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


def use_rcsl(config: ConfigDict, paired_images: int) -> None:
    """Sets RCSL's settings, those of its authors' code, for semi-paired data with so many pairs.

    Ours: x 0.1 after eight mining epochs. Theirs: at the 16th of the learning epochs, and again,
    since the optimiser starts anew, at the sixth of the mining epochs.
    """
    config.method = "rcsl"
    config.mismatch.protocol = "semi_paired"
    config.mismatch.paired_images = paired_images
    config.model.head = "aggregate"
    config.model.dropout = 0.1
    config.optim.learning_rate = 5e-4
    config.optim.decay_epochs = 8
    config.optim.weight_decay = 0.01
    config.train.batch_size = 256
    config.train.warmup_epochs = 25
    config.train.epochs = 15


def get_config(arg: str | None = None) -> ConfigDict:
    """The built-in data set at sizes that a laptop CPU trains in minutes.

    Args:
      arg: "quick" makes a run of a minute that shows the whole path and no quality.

    Raises:
      ConfigError: any other argument.
    """
    check_variant("scenes", arg, "quick")
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
    return config
