"""Judging: which pairs are mismatched, told by models that have not seen them.

A model that judges the pairs that it trains on calls them matched once it has memorised them. Here
the pairs are split into folds by image, and each fold is judged by models of the others.

* `judge` is the whole of it: from `pairs` to a `judgement`, which `verdict` puts into words.
* `folds` divides, `groups` finds what must stay together, `placeholders` what cannot be judged;
  `fold_pairs` draws what a fold is compared with, and known mismatches.
* `detectors` score a fold that they have not seen; `linear` fits the models of the default one,
  weighted by a nested round (`level`).
* `information`, `neighbours` and `scores` score pairs and known mismatches; `levels` turns scores
  into doubts, `rate` doubts into a rate and probabilities, and `posterior` puts these together.
* `kinds`, `shift` and `proposals` say what else is known; `transport` and `rematch` combine the
  images and captions of doubted pairs anew. `stages` keeps what is done.

Functions of arrays, cut into parts that `executors` compute. May import `data`, `linear`, `ot`,
`executors`, `config`, `console`, `errors` and `version`.
"""

from l2rm_jax.judging.detectors import (
    DETECTORS,
    Detector,
    Scorer,
    Task,
    make_detector,
    register_detector,
)
from l2rm_jax.judging.information import Model, product_similarity
from l2rm_jax.judging.judge import judge_pairs
from l2rm_jax.judging.judgement import (
    JUDGEMENT_FILE,
    Judgement,
    check_same_pairs,
    read_judgement,
    write_judgement,
)
from l2rm_jax.judging.pairs import Pairs
from l2rm_jax.judging.rematch import rematch

__all__ = [
    "DETECTORS",
    "JUDGEMENT_FILE",
    "Detector",
    "Judgement",
    "Model",
    "Pairs",
    "Scorer",
    "Task",
    "check_same_pairs",
    "judge_pairs",
    "make_detector",
    "product_similarity",
    "read_judgement",
    "register_detector",
    "rematch",
    "write_judgement",
]
