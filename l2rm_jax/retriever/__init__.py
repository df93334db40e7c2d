"""Use a trained model: load, encode, score, search, export.

* `loading` opens runs and published checkpoints as a `Retriever` of one or more `network`s.
* `retriever` encodes and searches; `sources` reads its inputs, `encoder` encodes texts in the same
  way as the imported data; `encodings` and `hits` are its results.
* `search` has the three ways to search: by vectors, among all pairs, among proposed pairs.
* `zero_shot` searches vectors of one space, without a run.
* `commands` runs the modes `search` and `embed`.

May import `pages`, `published`, `run` and all that these use.
"""

from l2rm_jax.retriever.encodings import EncodedCaptions, EncodedImages
from l2rm_jax.retriever.hits import Hit, Hits
from l2rm_jax.retriever.loading import load
from l2rm_jax.retriever.retriever import Retriever
from l2rm_jax.retriever.zero_shot import open_vectors

__all__ = ["EncodedCaptions", "EncodedImages", "Hit", "Hits", "Retriever", "load", "open_vectors"]
