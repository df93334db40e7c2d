"""MSR-VTT and MSVD: videos with any number of captions each, frames as regions.

python -m l2rm_jax.main --config=configs/video.py --config.data.path=DIR --mode=check
python -m l2rm_jax.main --config=configs/video.py:experts --config.data.path=DIR \
    --config.data.features=EXPERT --config.data.name=msvd

DIR is the collection of the dual-encoding release (`msrvtt10k` with FeatureData, TextData and
ImageSets); where there are several features, name one with data.features. With `:experts` it is the
directory of the collaborative-experts release, and EXPERT a file below it without its ending, with
one vector a video. RCL at its temperature; what is published on these data uses other heads.
"""

from l2rm_jax import config as defaults


def get_config(arg: str | None = None):
    defaults.check_variant("video", arg, "experts")
    config = defaults.default()
    config.data.name = "video"
    config.data.layout = arg or "dual_encoding"
    config.data.max_frames = 1 if arg else 32
    config.method = "rcl"
    config.model.head = "saf"
    config.train.warmup_epochs = 0
    config.train.epochs = 30
    return config
