"""Data sets: features, captions, mismatch, filters, and the batches made of them.

`stored` opens the files of a split in any layout, `loading` makes the three splits of a run,
`pairs` is what they hold, `streams` and `batches` read them for training and scoring, `scenes/` is
the built-in data set. May import `devices`, `config` and `errors`; no model.
"""

from l2rm_jax.data.batches import Batch, caption_batches, image_batches, scoring_batches
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import keep_data, load_data, read_split
from l2rm_jax.data.mismatch import Mismatch
from l2rm_jax.data.pairs import Data, PairDataset
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.text import Vocabulary

__all__ = [
    "Batch",
    "Data",
    "Mismatch",
    "PairDataset",
    "RegionFeatures",
    "TrainStream",
    "Vocabulary",
    "caption_batches",
    "image_batches",
    "keep_data",
    "load_data",
    "read_split",
    "scoring_batches",
]
