"""Data sets: features, captions, mismatched pairs, filters, and batches.

* `pairs` defines `Pairs`, the one type of a data set, in memory and on disk. `frames`, with
  `frame_columns`, reads a DataFrame or another table. `contents` checks arrays and texts and
  hashes them.
* `layouts/` opens a data set on disk as `Pairs`, one file per layout, with the help of `captions`,
  `features`, `columns` (of the user's table) and `files`; `scenes/` generates the
  built-in data set.
* `loading` reads the three splits of a run; `train_pairs` defines what training adds to `Pairs`:
  tokens, known mismatches, a judgement.
* `vectors` turns any features and texts into one vector per image or caption, for the judge.
* `split_files` names the files of a split. `drawn_splits` draws splits by the contents of the
  images, which `content_hashes` hashes.
* `text` turns captions into word indices.
* `shards` opens vectors in shards, with `parquet_vectors`, for audits and imports.
* `record` reads the record that an import wrote; `pictures` decodes photographs.
* `mismatch` swaps training pairs, `filters` drops them.
* `streams` builds the batches of training, `batches` those of scoring and evaluation.

May import `pretrained`, `linear`, `devices`, `jobs`, `config` and `errors`, but no model.
"""

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.train_pairs import TrainPairs

__all__ = ["RegionFeatures", "TrainPairs", "load_data"]
