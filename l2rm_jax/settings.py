"""Published settings of methods, for the variants of the files in `configs/`."""

import math
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.config import set_epochs

# The compared methods in their authors' public code, by data set: epochs of the warm-up, epochs
# after it, and what else differs from the defaults. Methods of two networks validate on 1000
# captions.
_CO_TEACHING = {"data.dev_images": 200, "mismatch.protocol": "caption"}
COMPARED: dict[str, dict[str, tuple[int, int, dict[str, Any]]]] = {
    "f30k": {
        "decl": (5, 40, {"optim.decay_epochs": 20}),  # at rates up to 0.4; 2 warm-up epochs above
        # Its authors also noise a fifth of the regions, which `sgr` and `saf` do not allow here.
        "crcl": (
            2,
            30,
            {
                "mismatch.protocol": "caption",
                "model.word_noise": 0.2,
                "optim.learning_rate": 5e-4,
                "optim.weight_decay": 0.01,
                "optim.decay_epochs": 15,
            },
        ),
        "ncr": (5, 40, {"optim.decay_epochs": 30, **_CO_TEACHING}),
        "bicro": (10, 40, {"optim.decay_epochs": 30, **_CO_TEACHING}),
        "sps": (5, 40, {"optim.decay_epochs": 10, "loss.tau": 0.07, **_CO_TEACHING}),
        "cream": (5, 40, {"optim.decay_epochs": 10, "loss.tau": 0.07, **_CO_TEACHING}),
        # Epochs and queue are the paper's: the code's defaults do not train mismatched pairs.
        "in2r": (
            5,
            40,
            {
                "mismatch.protocol": "caption",
                "model.head": "centred",
                "model.dropout": 0.3,
                "model.region_mask": 0.2,
                "model.word_noise": 0.2,
                "in2r.queue_length": 65536,
                "optim.learning_rate": 5e-4,
                "optim.weight_decay": 1e-4,
                "optim.decay_epochs": 15,
            },
        ),
    },
    "coco": {
        # At rates up to 0.4; 1 warm-up epoch above.
        "decl": (2, 20, {"optim.decay_epochs": 10, "optim.learning_rate": 5e-4}),
        "ncr": (10, 20, {"optim.decay_epochs": 10, **_CO_TEACHING}),
        "bicro": (10, 40, {"optim.decay_epochs": 30, **_CO_TEACHING}),
        "sps": (
            5,
            20,
            {
                "optim.decay_epochs": 10,
                "loss.tau": 0.07,
                "sps.noisy_epoch": 10,
                **_CO_TEACHING,
            },
        ),
        "cream": (
            5,
            20,
            {
                "optim.decay_epochs": 10,
                "loss.tau": 0.07,
                "cream.hard_epoch": 10,
                "cream.noisy_epoch": 15,
                **_CO_TEACHING,
            },
        ),
    },
    "cc152k": {
        "decl": (5, 40, {"optim.decay_epochs": 20}),
        "ncr": (10, 40, {"optim.decay_epochs": 30}),
        "bicro": (10, 40, {"optim.decay_epochs": 30}),
        "cream": (5, 40, {"optim.decay_epochs": 10, "loss.tau": 0.07}),
    },
}


def use_compared(config: ConfigDict, data: str, method: str) -> None:
    """Set the public settings of a compared method.

    Args:
      config: the config of the data set, to change.
      data: key of `COMPARED`.
      method: key of `COMPARED[data]`.
    """
    warmup, epochs, changes = COMPARED[data][method]
    config.method = method
    set_epochs(config, warmup, epochs)
    config.update_from_flattened_dict(changes)


def use_omit(config: ConfigDict) -> None:
    """Set OMIT's settings for region features (Sec. 4.1 of its paper).

    They are the same for Flickr30K and COCO.
    """
    config.method = "triplet"
    config.mismatch.rate = 0.0
    config.model.head = "omit"
    config.model.dropout = 0.0
    config.model.region_mask = 0.4
    config.model.word_noise = 0.2
    config.loss.margin = 0.05
    config.optim.learning_rate = 5e-4
    config.optim.decay_epochs = 9  # with the warm-up epoch, ten epochs at the full rate
    config.optim.weight_decay = 5e-4
    config.train.batch_size = 384
    set_epochs(config, warmup=1, epochs=14)  # the warm-up: all negatives, not the hardest


def use_omit_bert(config: ConfigDict) -> None:
    """Set OMIT's settings for region features and BERT, which are the same for both data sets.

    They come from the paper; the learning rate of BERT comes from the public code. The paper takes
    the state of [CLS] as the caption's global vector.
    """
    use_omit(config)
    config.data.max_words = 128  # pieces: no caption of the benchmarks has more
    config.model.text_encoder = "bert"
    config.model.global_vector = "first"
    config.optim.text_rate = 0.1


def use_clip(config: ConfigDict) -> None:
    """Set the settings of a plain fine-tuned CLIP, without additional layers.

    Batches, schedule and AdamW follow the public code of NPC and OSA, which train both encoders at
    one rate. The rate is OSA's: NPC's 5e-7 is for float16 arrays.
    """
    _use_pretrained_clip(config)
    config.method = "infonce"
    config.model.head = "vse"
    config.model.text_states = config.model.image_states = "vector"
    config.model.embed_dim = 0
    config.loss.tau = 0.01  # CLIP's own scale, 100
    config.loss.learn_scale = True
    config.optim.learning_rate = 1e-5
    config.optim.text_rate = config.optim.image_rate = 1.0
    config.optim.schedule = "cosine"
    config.optim.warmup_steps = 500
    config.optim.beta2, config.optim.adam_epsilon = 0.98, 1e-6
    config.optim.weight_decay = 0.2
    config.optim.grad_clip = 10.0
    config.train.batch_size = 256
    set_epochs(config, warmup=0, epochs=5)


def use_osa(config: ConfigDict) -> None:
    """Set OSA's settings: `use_clip` with a weight per pair, by its cosine before training.

    The curve is the paper's; `train.weight_curve=osa_code` is the public code's. The threshold is
    the mean cosine of a pair's image and the other captions of its batch, where the code takes
    random pixels and tokens.
    """
    use_clip(config)
    config.mismatch.rate, config.mismatch.protocol = 0.4, "caption"
    config.train.weight = "start"
    config.optim.grad_clip = math.inf


def use_clip_omit(config: ConfigDict) -> None:
    """Set the settings of OMIT on CLIP, as far as its public code has them.

    In the first epoch, CLIP does not move and the loss takes all negatives.
    """
    use_omit(config)
    _use_pretrained_clip(config)
    config.model.region_mask, config.model.word_noise = 0.2, 0.0  # of patches
    config.optim.text_rate, config.optim.image_rate = 0.1, 0.01
    config.optim.base_epochs = 1
    config.optim.decay_epochs = 14  # with the warm-up epoch, fifteen at the full rate
    config.optim.weight_decay = 1e-4
    config.train.batch_size = 60
    set_epochs(config, warmup=1, epochs=24)


def _use_pretrained_clip(config: ConfigDict) -> None:
    """Encode both images (as pixels) and captions with CLIP, without added mismatch."""
    config.mismatch.rate = 0.0
    config.data.max_words = 77
    config.model.text_encoder = config.model.image_encoder = "clip"
    config.model.dropout = 0.0


def use_rcsl(config: ConfigDict, paired_images: int) -> None:
    """Set the settings of RCSL's authors' code, for semi-paired data.

    The decay of the learning rate differs. Ours divides it by 10 after eight mining epochs. Theirs
    does so at the 16th learning epoch and, as the optimiser is re-initialised, at the sixth mining
    epoch.

    Args:
      config: the config to change.
      paired_images: number of images that keep their captions.
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
    set_epochs(config, warmup=25, epochs=15)


def use_chan(config: ConfigDict) -> None:
    """Set the settings of CHAN's public scripts for Bi-GRU, the same for Flickr30K and COCO.

    They also drop `<start>` and `<end>`, which this code keeps, and drop regions independently.
    """
    config.method = "triplet"
    config.mismatch.rate = 0.0
    config.model.head = "chan"
    config.model.pooling = "lse"
    config.model.dropout = 0.0
    config.model.region_mask = config.model.word_noise = 0.2
    config.loss.margin = 0.05
    config.optim.learning_rate = 5e-4
    config.optim.weight_decay = 0.01
    config.optim.decay_epochs = 14  # with the warm-up epoch, fifteen at the full rate
    config.train.batch_size = 384
    set_epochs(config, warmup=1, epochs=24)  # the warm-up: all negatives, not the hardest


def use_naaf(config: ConfigDict, batch_size: int) -> None:
    """Set the settings of NAAF's public code (its README).

    Args:
      config: the config to change.
      batch_size: 128 on Flickr30K, 256 on COCO.
    """
    config.method = "triplet"
    config.mismatch.rate = 0.0
    config.model.head = "naaf"
    config.model.dropout = 0.0
    config.naaf.threshold = "code"
    config.optim.learning_rate = 5e-4
    config.optim.decay_epochs = 10
    config.train.batch_size = batch_size
    set_epochs(config, warmup=0, epochs=20)


def use_de(config: ConfigDict) -> None:
    """Set DE's sizes and optimiser (its public code), and RCL's loss (its Tab. 3).

    The authors lower the rate by 1% per epoch, and halve it when validation does not improve; here
    it is divided by 10 once.
    """
    config.method = "rcl"
    config.model.head = "de"
    config.model.embed_dim = 2048
    config.model.word_dim = 500
    config.model.dropout = 0.2
    config.data.min_count = 5
    config.de.packed = False
    config.optim.learning_rate = 1e-4
    config.optim.decay_epochs = 30
    set_epochs(config, warmup=0, epochs=50)


SCAN = ("scan", "scan_i2t", "imram")  # variants of configs that `use_scan` sets


def use_scan(config: ConfigDict, variant: str, epochs: int) -> None:
    """Set the settings of SCAN's public code ("AVG" in its README), which IMRAM's code keeps.

    Args:
      config: the config to change.
      variant: one of `SCAN`.
      epochs: epochs of the run, all with the hardest negatives.
    """
    config.method = "triplet"
    config.mismatch.rate = 0.0
    config.model.head = "imram" if variant == "imram" else "cam"
    config.model.matching = "naive"
    config.model.dropout = 0.0
    config.cam.direction = "i2t" if variant == "scan_i2t" else "t2i"
    set_epochs(config, 0, epochs)
