"""Data sets: features, captions, mismatched pairs, filters, and batches.

* `loading` reads the three splits of a run; `pairs` defines the content of a split.
* `stored` opens the files of one split in any layout, with the help of `captions`, `features`,
  `repeats`, `video`, `pickles` and `files`; `scenes/` generates the built-in data set. `ids` reads
  the user's ids of images and captions.
* `text` turns captions into word indices, `pieces` into indices of a pretrained tokenizer;
  `pretrained` reads a directory of pretrained weights.
* `shards` opens vectors in shards, with `parquet_vectors`, for audits and imports.
* `record` reads the record that an import wrote; `encoders/` turn photographs and captions into
  features.
* `mismatch` swaps training pairs, `filters` drops them.
* `streams` builds the batches of training, `batches` those of scoring and evaluation.

May import `devices`, `config`, `bases` and `errors`, but no model.
"""

from l2rm_jax.data.batches import Batch, caption_batches, image_batches, scoring_batches
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import load_data, read_split, save_vocabulary_and_index
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
    "load_data",
    "read_split",
    "save_vocabulary_and_index",
    "scoring_batches",
]
