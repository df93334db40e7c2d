"""Use a trained model: load, encode, score, search, export.

* `loading` opens runs and published checkpoints as a `Retriever` of one or more `network`s, and
  vectors of one space without a run.
* `retriever` encodes and searches; `sources` reads its inputs, and encodes texts and pictures as
  the imported data were; `encodings` and `hits` are its results.
* `search` has the three ways to search: by vectors, among all pairs, among proposed pairs.
* `commands` runs the modes `search` and `embed`.

May import `pages`, `published`, `run` and all that these use.
"""

from l2rm_jax.retriever.encodings import EncodedCaptions, EncodedImages
from l2rm_jax.retriever.hits import Hit, Hits
from l2rm_jax.retriever.loading import load, open_vectors
from l2rm_jax.retriever.retriever import Retriever

__all__ = ["EncodedCaptions", "EncodedImages", "Hit", "Hits", "Retriever", "load", "open_vectors"]
