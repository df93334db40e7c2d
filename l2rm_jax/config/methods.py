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
        "infonce: learn the temperature, from loss.tau, or with model.embed_dim=0 from that "
        "in a pretrained CLIP or SigLIP",
    ),
    "l2rm.warmup_loss": Field(
        "rce", "loss of the warm-up: rce (with InfoNCE), infonce, triplet (L2RM Tab. 4)"
    ),
    "l2rm.rematch_loss": Field(
        "symmetric_kl", "loss of mismatched pairs: symmetric_kl, kl, infonce, js (L2RM Tab. 3)"
    ),
    "l2rm.cost": Field("learned", "transport cost: learned, cosine (L2RM Tab. 3)"),
    "l2rm.mask": Field("diagonal", "pairs that are never rematched: diagonal, same_image, none"),
    "l2rm.rho": Field(
        0.1,
        "share of the mass to transport; 1.0 is full transport (L2RM Tab. 3), 0 grows with "
        "the batch size (`share_of_batch`)",
        between(0, 1),
    ),
    "l2rm.epsilon": Field(0.01, "entropic regularisation (lambda in the paper)", ABOVE_0),
    "l2rm.solver": Field(
        "converged",
        "converged, or l2rm, which stops early as the authors' code does and moves too much mass",
    ),
    "l2rm.cost_learning_rate": Field(
        2e-6,
        "learning rate of the learned cost, by Adam",
        at_least(0),
    ),
    "l2rm.queue_length": Field(0, "mismatched images per transport problem (0 = the batch)"),
    "split.by": Field(
        "loss",
        "split pairs into matched and mismatched by the loss (decl: evidence) of the model in "
        "training, or by the judgement of models that were not trained on the pair",
    ),
    "judgement.detector": Field(
        "linear",
        "linear, cosine (vectors of one space), scores (from a file), a plug-in's detector, "
        "or METHOD-HEAD (infonce-vse): for each fold, a run on the other folds",
    ),
    "judgement.folds": Field(
        5,
        "number of folds; each is judged by models of the others",
        between(3, 100),
    ),
    "judgement.path": Field(
        "",
        "Reuse an existing judgement: an audit directory or its judgement.npz.",
        is_path=True,
    ),
    "judgement.scores": Field(
        "",
        "judgement.detector=scores: .npy with one score per pair; higher = better match",
        is_path=True,
    ),
    "judgement.every": Field(
        0,
        "METHOD-HEAD: 0 judges once, before the first epoch; n again every n epochs after the "
        "warm-up, with runs that stay n epochs ahead",
        at_least(0),
    ),
    "rcl.loss": Field("log", "complementary loss: log, exp, gce, tan, mae (RCL Tab. 6)"),
    "rcl.q": Field(0.2, "exponent of gce, in (0, 1]"),
    "rcl.negatives": Field(
        0,
        "number of random negatives per query (0 = the whole batch)",
    ),
    "rcsl.tau": Field(0.03, "temperature of the robust mining loss", ABOVE_0),
    "rcsl.search": Field(
        "nearest",
        "search for pseudo-pairs: nearest (the paper), or transport (ours), which chooses "
        "none too often",
    ),
    "rcsl.mining": Field("both", "mined pairs to train: both, images, texts, none (RCSL Tab. 6)"),
    "rcsl.paired_loss": Field(True, "train the triplet loss of the known pairs"),
    "rcsl.regulariser": Field(True, "train the alignment and uniformity of the vectors"),
    "rcsl.learning_share": Field(
        1.0,
        "share of the unpaired images and captions in an epoch of the warm-up, redrawn every "
        "epoch; the authors use 0.2 on COCO",
        between(0, 1),
    ),
    # Smaller values overflow the evidence.
    "decl.tau": Field(0.1, "temperature of the evidence", at_least(0.02)),
    "decl.triplet_weight": Field(
        0.8,
        "weight of the triplet loss",
        at_least(0),
    ),
    "crcl.schedules": Field(
        (5, 5, 5),
        "epochs after the warm-up of each schedule but the last, which has train.epochs; each "
        "has its own warm-up and starts with a new network",
    ),
    "co_teaching.margins": Field(
        "paper",
        "margins of hinges and labels of pairs: paper, or code (the newest public revisions)",
    ),
    "co_teaching.soft_margin": Field(
        "exponential", "growth of the margin with the label: exponential, linear, sin"
    ),
    "co_teaching.mismatched_epoch": Field(
        17,
        "first epoch after the warm-up that also trains the mismatched pairs",
        at_least(0),
    ),
    "sps.clean_epoch": Field(
        8,
        "first epoch after the warm-up that trains the less certain clean pairs",
        at_least(0),
    ),
    "sps.noisy_epoch": Field(
        13,
        "the same for noisy images with new captions",
        at_least(0),
    ),
    "cream.hard_epoch": Field(
        8,
        "first epoch after the warm-up that trains pairs on which the networks disagree",
        at_least(0),
    ),
    "cream.noisy_epoch": Field(
        13,
        "the same for noisy pairs",
        at_least(0),
    ),
    "in2r.neighbours": Field(
        5,
        "number of matched pairs of the queue whose mean is the partner of a mismatched item",
        at_least(1),
    ),
    "in2r.queue_length": Field(
        8192,
        "Matched pairs whose vectors each network keeps. The paper has 65,536 on Flickr30K, which "
        "takes 1.1 GB in each checkpoint.",
        at_least(1),
    ),
    "audit.top": Field(
        5,
        "maximum number of captions proposed per suspicious pair",
        between(0, 100),
    ),
    "audit.gallery": Field(
        1000,
        "number of most suspicious pairs whose pictures the page contains",
        at_least(0),
    ),
    "audit.max_share": Field(
        1.0,
        "exit with status 3 if the lower end of the mismatch rate is above this value, and "
        "with 4 if the audit gives no rate; 1.0 disables both",
        between(0, 1),
    ),
    "audit.review": Field(
        "",
        "CSV file of manual decisions, for the report and for scores.npy",
        is_path=True,
    ),
    "audit.by": Field(
        "",
        "column of the imported table, for a mismatch rate of each of its values",
    ),
    "audit.decide": Field(
        100,
        "number of pairs in the blind review",
        at_least(1),
    ),
    "audit.certify": Field(
        0.0,
        "with a review: certify kept pairs of which at most this share is wrong, with 90% "
        "confidence; exit with status 4 if no set passes; 0.0: no certificate",
        between(0, 0.5),
    ),
}
