"""Train on videos (MSR-VTT, MSVD), with frames as regions and any number of captions per video.

python -m experiments.convert_video dual_encoding msrvtt10k --out=DIR --max_frames=32
l2rm check --config=video --data=DIR

DIR is the directory that the converter writes from a dual-encoding or collaborative-experts
release.

`video:de` is RCL-DE of RCL Tab. 3: the head `de` at its published sizes, for videos of 64 frames,
the converter's default; --config.method=triplet is DE alone. Their noise moves all captions of a
share of the videos: --config.mismatch.rate=0.4. --config.evaluation.protocol=msrvtt (or msvd)
checks that the test split is the published one.

The method is RCL with its own temperature. Published results use `de` or heads that are not here.
"""

from l2rm_jax import config as defaults
from l2rm_jax import settings


def get_config(arg: str | None = None):
    defaults.check_variant("video", arg, "de")
    config = defaults.default()
    config.data.name = "video"
    config.method = "rcl"
    config.model.head = "saf"
    defaults.set_epochs(config, warmup=0, epochs=30)
    if arg == "de":
        settings.use_de(config)
    return config
