"""Fields of the methods, of judging, and of the audit."""

from l2rm_jax.config.field import ABOVE_0, Field, at_least, between

METHODS = {
    "loss.margin": Field(0.2, "margin of the triplet losses", at_least(0)),
    "loss.tau": Field(
        0.05,
        "temperature of every contrastive loss except RCSL's mining loss",
        ABOVE_0,
    ),
    "loss.learn_scale": Field(
        False,
        "infonce: the temperature starts at tau, or with model.embed_dim=0 at that of a "
        "pretrained CLIP or SigLIP, and is learned, 0.01 at least.",
    ),
    "l2rm.warmup_loss": Field("rce", "rce (with InfoNCE), infonce, triplet (L2RM Tab. 4)"),
    "l2rm.rematch_loss": Field("symmetric_kl", "symmetric_kl, kl, infonce, js (L2RM Tab. 3)"),
    "l2rm.cost": Field("learned", "learned, cosine (L2RM Tab. 3)"),
    "l2rm.mask": Field("diagonal", "pairs that are never rematched: diagonal, same_image, none"),
    "l2rm.rho": Field(
        0.1,
        "Share of the mass that is transported. 1.0 is full transport (L2RM Tab. 3). 0 is a "
        "share that grows with the batch: 0.10 at 128, 0.34 at 512 (see `share_of_batch`).",
        between(0, 1),
    ),
    "l2rm.epsilon": Field(0.01, "entropic regularisation (lambda in the paper)", ABOVE_0),
    "l2rm.solver": Field(
        "converged",
        '"l2rm" stops where the authors\' code does, and moves too much mass',
    ),
    "l2rm.cost_learning_rate": Field(
        2e-6,
        "learning rate of the learned cost, by Adam",
        at_least(0),
    ),
    "l2rm.queue_length": Field(0, "mismatched images per transport problem (0 = the batch)"),
    "split.by": Field(
        "loss",
        "Criterion that splits the pairs into matched and mismatched: loss (in the model being "
        "trained; decl: its evidence) or judgement (by models that have not seen the pair).",
    ),
    "judgement.detector": Field(
        "linear",
        "What judges: linear, cosine (vectors of one space), scores (numbers of a file), a "
        "plug-in's detector, or METHOD-HEAD (infonce-vse): for each fold, a run on the pairs "
        "of the other folds that a linear model calls matched.",
    ),
    "judgement.folds": Field(
        5,
        "parts of the images; each is judged by models of the others",
        between(3, 100),
    ),
    "judgement.path": Field(
        "",
        "A finished judgement in place of one of its own: the directory of an audit, or its file.",
    ),
    "judgement.scores": Field(
        "",
        "detector scores: .npy, a number for each pair, higher = better matched",
    ),
    "judgement.every": Field(
        0,
        "METHOD-HEAD: 0 judges once, before the first epoch, by runs of as many epochs as "
        "this one. n judges again every n epochs after the warm-up, by runs that are always n "
        "epochs ahead.",
        at_least(0),
    ),
    "rcl.loss": Field("log", "log, exp, gce, tan, mae (RCL Tab. 6)"),
    "rcl.q": Field(0.2, "exponent of gce, in (0, 1]"),
    "rcl.negatives": Field(
        0,
        "negatives per query, at random (0 = the whole batch; 1 = NL of RCL Tab. 7)",
    ),
    "rcsl.tau": Field(0.03, "temperature of the robust mining loss", ABOVE_0),
    "rcsl.search": Field(
        "nearest",
        "How pseudo-pairs are found: nearest (the paper), or transport (ours): the largest "
        "entries of a transport plan between all unpaired images and captions, so that none "
        "is chosen too often.",
    ),
    "rcsl.mining": Field("both", "mined pairs that train: both, images, texts, none (RCSL Tab. 6)"),
    "rcsl.paired_loss": Field(True, "the triplet loss of the known pairs"),
    "rcsl.regulariser": Field(True, "alignment and uniformity of the vectors"),
    "rcsl.learning_share": Field(
        1.0,
        "Share of the unpaired images and captions that a learning epoch (rcsl's warm-up) "
        "uses, drawn anew each epoch. The authors use 0.2 on COCO.",
        between(0, 1),
    ),
    # Below, evidence overflows.
    "decl.tau": Field(0.1, "temperature of the evidence", at_least(0.02)),
    "decl.triplet_weight": Field(
        0.8,
        "weight of the triplet loss, beside the evidential one",
        at_least(0),
    ),
    "crcl.schedules": Field(
        (5, 5, 5),
        "Epochs after the warm-up of each schedule but the last, which has train.epochs. Each "
        "schedule has a warm-up of its own and starts with a fresh network.",
    ),
    "co_teaching.margins": Field(
        "paper",
        'Whose margin a hinge has, and which labels a pair gets: "paper", or "code" as in the '
        "newest public revisions, which differ from their papers.",
    ),
    "co_teaching.soft_margin": Field("exponential", "margin by label: exponential, linear, sin"),
    "co_teaching.mismatched_epoch": Field(
        17,
        "First epoch after the warm-up that also trains the mismatched pairs.",
        at_least(0),
    ),
    "sps.clean_epoch": Field(
        8,
        "first epoch after the warm-up that trains the less sure clean pairs",
        at_least(0),
    ),
    "sps.noisy_epoch": Field(
        13,
        "first epoch after the warm-up that trains noisy images with new captions",
        at_least(0),
    ),
    "cream.hard_epoch": Field(
        8,
        "first epoch after the warm-up that trains pairs on which networks disagree",
        at_least(0),
    ),
    "cream.noisy_epoch": Field(
        13,
        "first epoch after the warm-up that trains noisy pairs",
        at_least(0),
    ),
    "audit.top": Field(
        5,
        "captions that are proposed for a doubted pair, at most",
        between(0, 100),
    ),
    "audit.gallery": Field(
        1000,
        "pairs of the page whose pictures are embedded in it, the most doubted",
        at_least(0),
    ),
    "audit.max_share": Field(
        1.0,
        "Exit with status 3 if more than this share of the pairs is mismatched (the lower end "
        "of its interval), and with 4 if the audit cannot tell. 1.0 asks for neither.",
        between(0, 1),
    ),
    "audit.review": Field(
        "",
        "CSV file of decisions made by eye, for the report and for scores.npy",
    ),
}
