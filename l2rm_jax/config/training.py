"""Fields of training and evaluation."""

from l2rm_jax.config.field import ABOVE_0, INSIDE_0_1, Field, at_least, between, one_of

TRAINING = {
    "optim.learning_rate": Field(2e-4, "learning rate of the model, by Adam", ABOVE_0),
    "optim.schedule": Field(
        "step",
        "after the warm-up: step divides the rate by 10 every decay_epochs epochs, cosine "
        "lowers it to 0 over train.epochs",
        one_of("step", "cosine"),
    ),
    "optim.decay_epochs": Field(
        15,
        "epochs between divisions of the rate by 10",
        at_least(1),
    ),
    "optim.warmup_steps": Field(
        0,
        "updates over which the rate rises linearly to its full value",
        at_least(0),
    ),
    "optim.beta2": Field(0.999, "Adam's decay of the mean of squared gradients", INSIDE_0_1),
    "optim.adam_epsilon": Field(1e-8, "Adam's epsilon, added to the root of that mean", ABOVE_0),
    "optim.grad_clip": Field(2.0, "maximum global norm of the gradient", ABOVE_0),
    "optim.weight_decay": Field(0.0, "weight decay of AdamW", at_least(0)),
    "optim.text_rate": Field(
        0.1,
        "learning rate of a pretrained text encoder, relative to optim.learning_rate; 0 freezes it",
        at_least(0),
    ),
    "optim.image_rate": Field(0.01, "the same for a pretrained image encoder", at_least(0)),
    "optim.base_epochs": Field(
        0,
        "first epochs in which pretrained encoders are frozen",
        at_least(0),
    ),
    "train.batch_size": Field(
        128,
        "pairs per batch, over all devices",
        at_least(2, "because a pair is compared with the others in its batch"),
    ),
    "train.warmup_epochs": Field(
        5,
        "epochs of the method's warm-up; the learning rate decays only after it",
        at_least(0),
    ),
    "train.epochs": Field(35, "epochs after the warm-up", at_least(0)),
    "train.draw": Field(
        "even",
        "pairs of an epoch, for methods without a split: even (all), judgement (each with its "
        "probability of being matched; cca: its weight), or rematched (also suspicious "
        "images and captions, rematched by transport)",
    ),
    "train.weight": Field(
        "none",
        "weight of a pair in infonce, triplet and sigmoid: none (1), judgement (its "
        "probability of being matched), score (data.scores), or start (its similarity by the "
        "model before training)",
    ),
    "train.weight_curve": Field(
        "osa",
        "weight by score: linear (clipped to [0, 1]); osa (t^2 (1 - t) for a cosine t above "
        "that of unrelated pairs); osa_code (t^2 (1 - t^2), relative to the best pair of the "
        "batch)",
    ),
    "train.networks": Field(
        0,
        "number of networks, whose similarities are averaged; 0: two for ncr, bicro, sps, cream "
        "and in2r, else one. With 1, the network of these five is its own peer.",
        at_least(0),
    ),
    "train.length_groups": Field(
        1,
        "number of batches whose captions are sorted by length together, to reduce padding; 1 "
        "disables sorting",
        at_least(1),
    ),
    "train.checkpoint_steps": Field(1000, "save every n steps, also within an epoch", at_least(1)),
    "train.log_steps": Field(10, "log the step metrics every n steps", at_least(1)),
    "train.non_finite": Field(
        "stop",
        "reaction to a loss or gradient that is not finite: stop the run, or skip the update",
        one_of("stop", "skip"),
    ),
    "train.tensorboard": Field(False, "also write TensorBoard scalars to workdir/tensorboard"),
    "evaluation.batch_size": Field(128, "captions scored at once", between(1, 65536)),
    "evaluation.protocol": Field(
        "custom",
        "f30k-1k, coco-1k-5fold, coco-5k, cc152k-1k, msvd, msrvtt, or custom (the whole of "
        "any test split); several, divided by commas, share one scoring, and rsum belongs to "
        "the first",
    ),
    "evaluation.dual_softmax": Field(
        0.0,
        "temperature of an additional row, in which each similarity is multiplied by its "
        "softmax over the queries; 0 disables it",
        at_least(0),
    ),
}
