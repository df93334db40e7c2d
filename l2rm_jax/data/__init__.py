"""Data sets: features, captions, mismatched pairs, filters, and batches.

* `loading` reads the three splits of a run; `pairs` defines the content of a split.
* `stored` opens the files of one split, with the help of `captions`, `features`, `repeats` and
  `files`; `scenes/` generates the built-in data set. `ids` reads the ids of images and captions.
* `text` turns captions into word indices, `pieces` into indices of a pretrained tokenizer;
  `pretrained` reads a directory of pretrained weights.
* `shards` opens vectors in shards, with `parquet_vectors`, for audits and imports.
* `record` reads the record that an import wrote; `encoders/` turn photographs and captions into
  features.
* `mismatch` swaps training pairs, `filters` drops them.
* `streams` builds the batches of training, `batches` those of scoring and evaluation.

May import `devices`, `config`, `bases` and `errors`, but no model.
"""

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.pairs import PairDataset

__all__ = ["PairDataset", "RegionFeatures", "load_data"]
