"""Train on videos (MSR-VTT, MSVD), with frames as regions and any number of captions per video.

l2rm check --config=video --data=DIR
l2rm --config=video:experts --data=DIR \
    --config.data.features=EXPERT --config.data.name=msvd

For `video.py`, DIR is a collection of the dual-encoding release: `msrvtt10k` with FeatureData,
TextData and ImageSets. If it has several features, name one with --config.data.features.

For `video:experts`, DIR is a directory of the collaborative-experts release, and EXPERT a file
below it, without its extension, with one vector per video.

`video:de` is RCL-DE of RCL Tab. 3: the head `de` at its published sizes; --config.method=triplet is
only DE. Their noise moves all captions of a share of the videos: --config.mismatch.rate=0.4.
--config.evaluation.protocol=msrvtt (or msvd) checks that the test split is the published one.

The method is RCL with its own temperature. Published results use `de` or heads that are not here.
"""

from l2rm_jax import config as defaults
from l2rm_jax import settings


def get_config(arg: str | None = None):
    defaults.check_variant("video", arg, "experts", "de")
    config = defaults.default()
    config.data.name = "video"
    config.data.layout = "experts" if arg == "experts" else "dual_encoding"
    config.data.max_frames = 1 if arg == "experts" else 32
    config.method = "rcl"
    config.model.head = "saf"
    defaults.set_epochs(config, warmup=0, epochs=30)
    if arg == "de":
        settings.use_de(config)
    return config
