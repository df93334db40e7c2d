"""Cross-fitting: pairs judged by models that have not seen them.

A model that judges the pairs that it trains on calls them matched once it has memorised them. Here
the pairs are split into folds by image, and each fold is judged by a model of the others.

* `folds` splits; `features` turns a data set into one vector an image and a caption, with
  `set_features` (regions), `word_features` (words) and `directions`.
* `linear` is the linear detector: `cca` of the other folds, weighted by a nested round.
* `information` compares pairs with others of their fold, and with known negatives, for any model:
  the linear detector, or trained ones (`run/detector.py`).
* `judge` turns that into a posterior (`posterior`) at the level of pairs or images (`level`), and
  the rate of mismatch. `histogram` and `rows` keep memory small.
* `rematch` combines the images and captions of doubted pairs anew.

Functions of arrays, but for `features`. May import `data`, `ot`, `devices`, `config`,
`console` and `errors`.
"""

from l2rm_jax.crossfit.features import caption_vectors, image_vectors
from l2rm_jax.crossfit.folds import assign_folds, check_folds
from l2rm_jax.crossfit.information import (
    REFERENCES,
    Evidence,
    best_temperature,
    evidence_by_fold,
    fold_evidence,
    product_similarity,
)
from l2rm_jax.crossfit.judge import Judgement, judge
from l2rm_jax.crossfit.linear import fit_weighted, judge_pairs
from l2rm_jax.crossfit.rematch import rematch

__all__ = [
    "REFERENCES",
    "Evidence",
    "Judgement",
    "assign_folds",
    "best_temperature",
    "caption_vectors",
    "check_folds",
    "evidence_by_fold",
    "fit_weighted",
    "fold_evidence",
    "image_vectors",
    "judge",
    "judge_pairs",
    "product_similarity",
    "rematch",
]
