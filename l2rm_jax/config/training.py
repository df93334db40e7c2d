"""Fields of training and evaluation."""

from l2rm_jax.config.field import ABOVE_0, INSIDE_0_1, Field, at_least, between, one_of

TRAINING = {
    "optim.learning_rate": Field(2e-4, "learning rate of the model, by Adam", ABOVE_0),
    "optim.schedule": Field(
        "step",
        "After the warm-up: step divides the rate by 10 every decay_epochs epochs; cosine "
        "multiplies it by (1 + cos(pi e / n)) / 2 in epoch e of the n that follow.",
        one_of("step", "cosine"),
    ),
    "optim.decay_epochs": Field(
        15,
        "after the warm-up, the rate is divided by 10 every n epochs",
        at_least(1),
    ),
    "optim.warmup_steps": Field(
        0,
        "the first n updates have a rate that rises linearly to the full one",
        at_least(0),
    ),
    "optim.beta2": Field(0.999, "Adam's decay of the mean of squared gradients", INSIDE_0_1),
    "optim.adam_epsilon": Field(1e-8, "added to the root of that mean", ABOVE_0),
    "optim.grad_clip": Field(2.0, "largest global norm of the gradient", ABOVE_0),
    "optim.weight_decay": Field(0.0, "weight decay of AdamW", at_least(0)),
    "optim.text_rate": Field(
        0.1,
        "Rate of a pretrained text encoder, relative to optim.learning_rate; 0 freezes it for "
        "the run.",
        at_least(0),
    ),
    "optim.image_rate": Field(0.01, "the same of a pretrained image encoder", at_least(0)),
    "optim.base_epochs": Field(
        0,
        "first epochs of the run in which no pretrained encoder moves",
        at_least(0),
    ),
    "train.batch_size": Field(
        128,
        "pairs per batch, over all devices",
        at_least(2, "as a pair is compared with the others of its batch"),
    ),
    "train.warmup_epochs": Field(
        5,
        "epochs of the method's warm-up; the rate decays after them",
        at_least(0),
    ),
    "train.epochs": Field(35, "epochs after the warm-up", at_least(0)),
    "train.draw": Field(
        "even",
        "Pairs of an epoch, for methods without a split: even (all of them), posterior (each "
        "with the probability that it is matched, by the judgement; cca takes all, weighted "
        "by it) or rematched (also images and captions of doubted pairs, combined anew by "
        "transport).",
    ),
    "train.networks": Field(
        0,
        "Networks side by side, whose similarities are averaged. 0 is as many as the method "
        "has: two for ncr, bicro, sps and cream, where a single network (1) splits for "
        "itself; else one. More of another method train as if each were alone.",
        at_least(0),
    ),
    "train.length_groups": Field(
        1,
        "Batches whose captions are sorted by length together, so that a batch has less "
        "padding; their order is shuffled. 1 sorts none.",
        at_least(1),
    ),
    "train.checkpoint_steps": Field(1000, "save every n steps, also within an epoch", at_least(1)),
    "train.log_steps": Field(10, "log the step metrics every n steps", at_least(1)),
    "train.non_finite": Field(
        "stop",
        "What to do at a loss or gradient that is not finite: no update is made, then stop, "
        "or skip.",
        one_of("stop", "skip"),
    ),
    "train.tensorboard": Field(False, "also write TensorBoard scalars to workdir/tensorboard"),
    "evaluation.batch_size": Field(128, "captions scored at once", between(1, 65536)),
    "evaluation.protocol": Field(
        "custom",
        "f30k-1k, coco-1k-5fold, coco-5k, cc152k-1k, msvd, msrvtt, or custom: all of any test "
        "split. Several names with commas share one scoring; rsum in results.json is the "
        "first one's.",
    ),
    "evaluation.dual_softmax": Field(
        0.0,
        "Temperature of a second row: each similarity times its softmax over the queries, so "
        "the ranking of a query depends on the other queries. 0 is none. Cosines trained by a "
        "loss with temperature tau need about that tau.",
        at_least(0),
    ),
}
