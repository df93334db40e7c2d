"""Every field of a run: its default and its meaning.

The defaults are the L2RM authors' for Flickr30K at the paper's sizes. A file in `configs/` changes
what its data set needs. Without `--config`, the command line runs `get_config()` of this file.
`configs/README.md` has all fields as a table, which is generated from this file.
"""

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.errors import ConfigError, first_line

NEEDED_HEADS = {"cca": "linear"}  # methods that work with one head alone
# Fields of older versions, and what they are called now; "" where they are gone.
MOVED = {
    "split.folds": "judgement.folds",
    "split.detector": "judgement.detector",
    "split.every": "judgement.every",
    "split.level": "",
    "split.held_out": "",
    "split.fold_file": "",
    "audit.scorer": "",
    "audit.folds": "",
}
# Sections that not all runs read, and the methods that read them.
READ_BY = {"co_teaching": ("ncr", "bicro"), "sps": ("sps",), "cream": ("cream",), "audit": ()}


def default(plugins: Iterable[str] = ()) -> ConfigDict:
    """The common defaults; a data set must still be named.

    A new field's default is what runs did before the field existed, so that an older run directory,
    whose config lacks the field, continues unchanged.

    Args:
      plugins: modules to import, whose settings become the section `own`.

    Raises:
      ConfigError: a plug-in cannot be imported.
    """
    config = ConfigDict()
    config.seed = 0  # controls initialisation, order of the data, dropout
    # l2rm, rcl, rcsl, rcsl_nc, decl, crcl, ncr, bicro, sps, cream, triplet, infonce, sigmoid, cca,
    # or a plug-in's
    config.method = "l2rm"
    # Modules that register methods, heads or detectors of your own. They are imported before
    # anything else.
    config.plugins = tuple(plugins)

    # Matrix products of the models on a GPU or TPU: float32 (all digits) or bfloat16 (fastest).
    # Parameters, normalisation, softmax, losses and transport are float32 in both.
    config.precision = "float32"

    config.data = data = ConfigDict()
    data.name = ""  # "scenes" without data.path is the built-in data set; else only a label
    data.path = ""  # directory with {train,dev,test}_ims.npy and _caps.txt, _caps.tsv or _caps.npy
    data.layout = "precomp"  # layout of that directory; for videos dual_encoding or experts
    data.features = ""  # videos: directory in FeatureData, or the expert's file without its suffix
    data.max_frames = 64  # frames kept of a video, evenly spaced; 1 for aggregated features
    data.vocabulary = ""  # JSON file; "" builds one from train and dev and keeps it in the workdir
    data.word_vectors = ""  # start of the word embeddings: GloVe text, or FILE.npy and FILE.txt
    data.min_count = 4  # a word that occurs less often becomes <unk>
    data.split_sentences = False  # split sentences before words, as the authors do (NLTK punkt)
    data.max_words = 64  # tokens kept of a training caption, <start> and <end> included
    # Smallest side, relative to the picture, of random crops in training on pixels; 0 crops none.
    data.pixel_crop = 0.0
    data.train_images = 0  # train on the first n images (0 = all)
    data.dev_images = 0  # validate on the first n images (0 = all; the authors' code: 200)
    data.test_split = "test"  # "testall" for COCO's 5000 images
    # Which training pairs to drop: none; truth (the known mismatched ones); score (those below
    # filter_value); share (all but that share of the pairs, the best ones); crossfit (those that
    # are matched with a probability of filter_value or less, by the judgement).
    data.filter = "none"
    data.filter_scores = ""  # .npy with one score per stored pair, higher = better matched
    data.filter_value = 0.0  # threshold of filter "score" and "crossfit", or share kept by "share"
    data.scenes_seed = 0  # seed of the built-in data set
    data.scenes_train = 1000  # training pictures of the built-in data set
    data.scenes_dev = 200  # validation pictures of the built-in data set
    data.scenes_test = 500  # test pictures of the built-in data set

    config.mismatch = mismatch = ConfigDict()
    # What moves: "image" (RCL, DECL, L2RM): all captions of an image together; "caption" (NCR,
    # BiCro): each caption by itself. Results of the two cannot be compared. "semi_paired":
    # see paired_images.
    mismatch.protocol = "image"
    mismatch.rate = 0.0  # share of the images (or captions) that are permuted on purpose
    # With protocol "semi_paired", instead of a rate: the number of images that keep their captions.
    # The others are permuted and known to be unpaired. triplet, infonce and rcsl then trust the
    # paired images alone.
    mismatch.paired_images = 0
    mismatch.seed = 0  # controls which captions are swapped; independent of `seed`
    # With protocol "semi_paired", instead of paired_images: .npy with the rows of the pairs that
    # are known to be matched, such as `known.npy` of an audit. Nothing is permuted.
    mismatch.paired_file = ""
    mismatch.file = ""  # index .npy to use instead of generating a mismatch

    config.model = model = ConfigDict()
    # sgr, saf, omit, cam (SCAN), imram, chan, naaf, vse, pem, aggregate (RCSL's model), de (for
    # videos), linear (for cca), or a plug-in's
    model.head = "sgr"
    # Size of region, word and global vectors; 0 keeps the states of pretrained encoders.
    model.embed_dim = 1024
    model.word_dim = 300  # size of word embeddings, before the GRU
    model.sim_dim = 256  # sgr, saf: size of similarity vectors
    model.sgr_steps = 3  # sgr: rounds of reasoning
    model.dropout = 0.4  # dropout of word embeddings and global attentions
    model.chunk = 0  # captions scored at once, for speed and memory only; 0 = suits the device
    model.matching = "partial"  # omit: partial, full, prompt, naive; cam: partial, naive
    model.margins = "uniform"  # omit: uniform, intra, inter, norm (OMIT Eq. 7)
    model.match_epsilon = 0.02  # omit: entropic regularisation (lambda in the paper)
    # omit: dustbin of a caption: mean (of its words) or first (of them; a BERT's [CLS]).
    model.global_vector = "mean"
    model.pooling = "mean"  # vse: mean, gpo (VSE-infinity); chan, over words: mean, lse
    model.region_mask = 0.0  # share of an image's regions a training step omits; not for sgr, saf
    model.word_noise = 0.0  # share of a caption's words that are masked (half), replaced or dropped
    # What reads captions: gru (or vectors, if they are given), or a transformer of
    # model.pretrained: bert, clip, siglip.
    model.text_encoder = "gru"
    # What reads images: regions (features), or a transformer that reads pixels: clip, siglip.
    model.image_encoder = "regions"
    # Directory with config.json, tokenizer.json, model.safetensors, or a name on the Hub.
    model.pretrained = ""
    model.pretrained_images = ""  # another directory for the transformer of images; "" is the same
    model.text_states = "all"  # of a pretrained encoder: all (each token is a word) or vector
    model.image_states = "all"  # likewise: all (each patch is a region) or vector
    model.base_dropout = -1.0  # dropout of a pretrained encoder; -1 is what its config.json says
    model.adapter_rank = 0  # adapters, trained in place of a pretrained encoder; 0: none
    model.remat = False  # compute each pretrained layer again in the backward pass, to save memory

    config.cam = cam = ConfigDict()
    # Head cam: t2i, where words attend to regions, or i2t, where regions attend to words. With
    # model.matching=naive, these are SCAN's two directions.
    cam.direction = "t2i"

    config.imram = imram = ConfigDict()
    imram.rounds = 3  # head imram: rounds of attention
    imram.smoothing = 9.0  # head imram: inverse temperature of the attention over regions

    config.naaf = naaf = ConfigDict()
    # Head naaf: paper, where the batches before it set the threshold of a batch, or code, where it
    # moves from caption to caption within a batch.
    naaf.threshold = "paper"

    config.de = de = ConfigDict()
    de.image_gru = 1024  # head de: size of the GRU of frames, per direction
    de.text_gru = 512  # head de: size of the GRU of words, per direction
    de.filters = 512  # head de: filters of each convolution
    # Head de: True ignores padding. False is the authors' code, where the vector of a video depends
    # on how far it is padded.
    de.packed = True

    config.loss = loss = ConfigDict()
    loss.margin = 0.2  # margin of the triplet losses
    loss.tau = 0.05  # temperature of every contrastive loss except RCSL's mining loss
    # infonce: the temperature starts at tau, or with model.embed_dim=0 at that of a pretrained CLIP
    # or SigLIP, and is learned, 0.01 at least.
    loss.learn_scale = False

    config.l2rm = l2rm = ConfigDict()
    l2rm.warmup_loss = "rce"  # rce (with InfoNCE), infonce, triplet (L2RM Tab. 4)
    l2rm.rematch_loss = "symmetric_kl"  # symmetric_kl, kl, infonce, js (L2RM Tab. 3)
    l2rm.cost = "learned"  # learned, cosine (L2RM Tab. 3)
    l2rm.mask = "diagonal"  # pairs that are never rematched: diagonal, same_image, none
    # Share of the mass that is transported. 1.0 is full transport (L2RM Tab. 3). 0 is a share that
    # grows with the batch: 0.10 at 128, 0.34 at 512 (see `share_of_batch`).
    l2rm.rho = 0.1
    l2rm.epsilon = 0.01  # entropic regularisation (lambda in the paper)
    l2rm.solver = "converged"  # "l2rm" stops where the authors' code does, and moves too much mass
    l2rm.cost_learning_rate = 2e-6  # learning rate of the learned cost, by Adam
    l2rm.queue_length = 0  # mismatched images per transport problem (0 = the batch)

    config.split = split = ConfigDict()
    # How a method that splits tells matched pairs from mismatched ones: by their loss in the model
    # being trained (decl: by its evidence), or by crossfit: the judgement of models that have not
    # seen the pair.
    split.by = "loss"

    # Of the pairs, by models that have not seen them (`l2rm_jax/judging`): for split.by=crossfit,
    # data.filter=crossfit, train.draw, and `l2rm audit`.
    config.judgement = judgement = ConfigDict()
    # What judges: linear, cosine (vectors of one space), scores (numbers of a file), a plug-in's
    # detector, or METHOD-HEAD (infonce-vse): for each fold, a run on the pairs of the other folds
    # that a linear model calls matched.
    judgement.detector = "linear"
    judgement.folds = 5  # parts of the images; each is judged by models of the others
    # A finished judgement in place of one of its own: the directory of an audit, or its file.
    judgement.path = ""
    judgement.scores = ""  # detector scores: .npy, a number for each pair, higher = better matched
    # METHOD-HEAD: 0 judges once, before the first epoch, by runs of as many epochs as this one. n
    # judges again every n epochs after the warm-up, by runs that are always n epochs ahead.
    judgement.every = 0

    config.rcl = rcl = ConfigDict()
    rcl.loss = "log"  # log, exp, gce, tan, mae (RCL Tab. 6)
    rcl.q = 0.2  # exponent of gce, in (0, 1]
    rcl.negatives = 0  # negatives per query, at random (0 = the whole batch; 1 = NL of RCL Tab. 7)

    config.rcsl = rcsl = ConfigDict()
    rcsl.tau = 0.03  # temperature of the robust mining loss
    # How pseudo-pairs are found: nearest (the paper), or transport (ours): the largest entries of a
    # transport plan between all unpaired images and captions, so that none is chosen too often.
    rcsl.search = "nearest"
    rcsl.mining = "both"  # mined pairs that train: both, images, texts, none (RCSL Tab. 6)
    rcsl.paired_loss = True  # the triplet loss of the known pairs
    rcsl.regulariser = True  # alignment and uniformity of the vectors
    # Share of the unpaired images and captions that a learning epoch (rcsl's warm-up) uses, drawn
    # anew each epoch. The authors use 0.2 on COCO.
    rcsl.learning_share = 1.0

    config.decl = decl = ConfigDict()
    decl.tau = 0.1  # temperature of the evidence
    decl.triplet_weight = 0.8  # weight of the triplet loss, beside the evidential one

    config.crcl = crcl = ConfigDict()
    # Epochs after the warm-up of each schedule but the last, which has train.epochs. Each schedule
    # has a warm-up of its own and starts with a fresh network.
    crcl.schedules = (5, 5, 5)

    config.co_teaching = co_teaching = ConfigDict()  # of ncr and bicro
    # Whose margin a hinge has, and which labels a pair gets: "paper", or "code" as in the newest
    # public revisions, which differ from their papers.
    co_teaching.margins = "paper"
    co_teaching.soft_margin = "exponential"  # margin by label: exponential, linear, sin
    # First epoch after the warm-up that also trains the mismatched pairs.
    co_teaching.mismatched_epoch = 17

    config.sps = sps = ConfigDict()
    sps.clean_epoch = 8  # first epoch after the warm-up that trains the less sure clean pairs
    sps.noisy_epoch = 13  # first epoch after the warm-up that trains noisy images with new captions

    config.cream = cream = ConfigDict()
    cream.hard_epoch = (
        8  # first epoch after the warm-up that trains pairs on which networks disagree
    )
    cream.noisy_epoch = 13  # first epoch after the warm-up that trains noisy pairs

    config.audit = audit = ConfigDict()  # of `l2rm audit`; training reads none of it
    audit.top = 5  # captions that are proposed for a doubted pair, at most
    audit.gallery = 1000  # pairs of the page whose pictures are embedded in it, the most doubted
    # Exit with status 3 if more than this share of the pairs is mismatched (the lower end of its
    # interval), and with 4 if the audit cannot tell. 1.0 asks for neither.
    audit.max_share = 1.0
    audit.review = ""  # CSV file of decisions made by eye, for the report and for scores.npy

    config.own = ConfigDict(import_plugins(config.plugins))  # settings that the plug-ins register

    config.optim = optim = ConfigDict()
    optim.learning_rate = 2e-4  # learning rate of the model, by Adam
    # After the warm-up: step divides the rate by 10 every decay_epochs epochs; cosine multiplies it
    # by (1 + cos(pi e / n)) / 2 in epoch e of the n that follow.
    optim.schedule = "step"
    optim.decay_epochs = 15  # after the warm-up, the rate is divided by 10 every n epochs
    optim.warmup_steps = 0  # the first n updates have a rate that rises linearly to the full one
    optim.beta2 = 0.999  # Adam's decay of the mean of squared gradients
    optim.adam_epsilon = 1e-8  # added to the root of that mean
    optim.grad_clip = 2.0  # largest global norm of the gradient
    optim.weight_decay = 0.0  # weight decay of AdamW
    # Rate of a pretrained text encoder, relative to optim.learning_rate; 0 freezes it for the run.
    optim.text_rate = 0.1
    optim.image_rate = 0.01  # the same of a pretrained image encoder
    optim.base_epochs = 0  # first epochs of the run in which no pretrained encoder moves

    config.train = train = ConfigDict()
    train.batch_size = 128  # pairs per batch, over all devices
    train.warmup_epochs = 5  # epochs of the method's warm-up; the rate decays after them
    train.epochs = 35  # epochs after the warm-up
    # Pairs of an epoch, for methods without a split: even (all of them), posterior (each with the
    # probability that it is matched, by the judgement; cca takes all, weighted by it) or rematched
    # (also images and captions of doubted pairs, combined anew by transport).
    train.draw = "even"
    # Networks side by side, whose similarities are averaged. 0 is as many as the method has: two
    # for ncr, bicro, sps and cream, where a single network (1) splits for itself; else one. More of
    # another method train as if each were alone.
    train.networks = 0
    # Batches whose captions are sorted by length together, so that a batch has less padding; their
    # order is shuffled. 1 sorts none.
    train.length_groups = 1
    train.checkpoint_steps = 1000  # save every n steps, also within an epoch
    train.log_steps = 10  # log the step metrics every n steps
    # What to do at a loss or gradient that is not finite: no update is made, then stop, or skip.
    train.non_finite = "stop"
    train.tensorboard = False  # also write TensorBoard scalars to workdir/tensorboard

    config.evaluation = evaluation = ConfigDict()
    evaluation.batch_size = 128  # captions scored at once
    # f30k-1k, coco-1k-5fold, coco-5k, cc152k-1k, msvd, msrvtt, or custom: all of any test split.
    # Several names with commas share one scoring; rsum in results.json is the first one's.
    evaluation.protocol = "custom"
    # Temperature of a second row: each similarity times its softmax over the queries, so the
    # ranking of a query depends on the other queries. 0 is none. Cosines trained by a loss with
    # temperature tau need about that tau.
    evaluation.dual_softmax = 0.0
    return config.lock()  # a misspelt field is an error in a config file too


# Settings of plug-ins, by the module that registered them.
_settings: dict[str, dict[str, Any]] = {}
_importing: list[str] = []  # plug-ins whose import is under way, innermost last


def register_settings(make: Callable, settings: Mapping[str, Any]) -> None:
    """Keep the defaults of a plug-in's own fields, which become `config.own.FIELD`.

    They belong to the plug-in being imported, or to the module of `make`.
    """
    owner = _importing[-1] if _importing else make.__module__
    _settings.setdefault(owner, {}).update(settings)


def import_plugins(plugins: Iterable[str]) -> dict[str, Any]:
    """Import modules that register methods, heads and detectors; return their settings.

    Raises:
      ConfigError: a module is missing, or its import fails.
    """
    own: dict[str, Any] = {}
    for plugin in plugins:
        _importing.append(plugin)
        try:
            importlib.import_module(plugin)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"plugins: {plugin} cannot be imported ({error}); run the command where the "
                "module lies, or install it"
            ) from error
        except Exception as error:  # a plug-in is a program
            raise ConfigError(
                f"plugins: the import of {plugin} failed: {first_line(error)}"
            ) from error
        finally:
            _importing.pop()
        for module, settings in _settings.items():
            if module == plugin or module.startswith(f"{plugin}."):  # imported before, by itself
                own |= settings
    return own


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a config by dotted key: `train.epochs`."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, ConfigDict | Mapping)
        values |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return values


def unknown_field_error(key: str, known: Iterable[str], where: str = "") -> ConfigError:
    """Error for a field that does not exist; the hint is the field with the most similar spelling.

    Args:
      key: the field, without `config.`.
      known: the fields that there are.
      where: put before the field, the name of a file for example.
    """
    if key in MOVED:
        now = MOVED[key] or {"audit.scorer": "judgement.detector"}.get(key, "")
        gone = f"is config.{now} now" if now else "is gone: the judgement finds it out"
        return ConfigError(f"{where}config.{key}: {gone}", hint=now and f"config.{now}")
    section, names = key.rpartition(".")[0], list(known)
    others = [name for name in names if section and name.startswith(f"{section}.")]
    expected = f"one of {section}'s {len(others)}" if others else "one that l2rm --help lists"
    [nearest] = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
    return ConfigError(
        f"{where}config.{key}: no such field, expected {expected}", hint=f"config.{nearest}"
    )


def check_variant(config: str, arg: str | None, *known: str) -> None:
    """Check the variant of a config (`--config=CONFIG:VARIANT`).

    Args:
      config: CONFIG: the name of a shipped config, or `__file__` in a file of your own.
      arg: the variant; None or "" without one.
      *known: the variants of this config.

    Raises:
      ConfigError: the config has no such variant; the message names those that it has.
    """
    if arg and arg not in known:
        names = ", ".join(f"{config}:{name}" for name in known)
        nearest = difflib.get_close_matches(arg, known, n=1)
        raise ConfigError(
            f"{config}:{arg}: no such variant, expected {config} or {names}",
            hint=f"--config={config}:{nearest[0]}" if nearest else None,
        )


def set_epochs(config: ConfigDict, warmup: int, epochs: int) -> None:
    """Set the length of a run, and when methods of two networks start their later parts.

    Args:
      config: the config to change.
      warmup: epochs of the warm-up.
      epochs: epochs after it.
    """
    config.train.warmup_epochs, config.train.epochs = warmup, epochs
    config.co_teaching.mismatched_epoch = epochs // 2
    config.sps.clean_epoch = config.cream.hard_epoch = epochs // 4
    config.sps.noisy_epoch = config.cream.noisy_epoch = 3 * epochs // 8


def get_config(arg: str | None = None) -> ConfigDict:
    """The built-in data set, at sizes that a laptop CPU trains in two minutes.

    Args:
      arg: "quick" makes a run of half a minute, which shows every step of a run but learns little;
        "long" has the batches and epochs of the measured tables.

    Raises:
      ConfigError: any other argument.
    """
    check_variant("scenes", arg, "quick", "long")
    config = default()
    config.data.name = "scenes"
    config.mismatch.rate = 0.4
    config.model.head = "saf"
    config.model.embed_dim = 128
    config.model.word_dim = 64
    config.model.sim_dim = 64
    config.optim.learning_rate = 1e-3
    config.optim.decay_epochs = 8
    if arg == "long":
        config.train.batch_size = 64
        set_epochs(config, warmup=8, epochs=4)
        return config
    config.data.max_words = 20  # one length for all batches, so that a step is compiled once
    config.train.batch_size = 32
    set_epochs(config, warmup=5, epochs=3)
    if arg == "quick":
        config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 100, 20, 50
        set_epochs(config, warmup=2, epochs=2)
    return config
