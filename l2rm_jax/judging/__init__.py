"""Judging: find mismatched pairs by models that have not seen them.

A model that judges the pairs that it trains on calls them matched once it has memorised them. Here
the pairs are split into folds by image, and each fold is judged by models of the other folds.

* `judge` does all steps: from `data.pairs.Pairs` to a `judgement`, which `verdict` summarises in
  sentences. `content_keys` identify equal contents.
* `folds` assigns folds, and draws the references and known mismatches of each; `groups` finds near
  duplicates that must share a fold, and pictures that cannot be judged.
* `detectors` score a fold that they have not seen; `linear` fits the models of the default one to a
  plan of `transport_em`, weighted by a nested round (`sibling_swaps`).
* `log_odds`, `neighbours` and `scores` score pairs and known mismatches; `suspicion` combines the
  scores, `rate` estimates the rate and probabilities from them, and `posterior` joins the results.
* `classify` and `proposals` add kinds and better captions; `transport` and `transport_em.rematch`
  pair images and captions of suspicious pairs.
* `keep_judge` makes the judge that an audit keeps, `kept_judge` scores new pairs by it and
  `kept_set` a set of them: p-values and the rate by comparison with its `reference`, `drift`, and
  likeness to `witnesses`.

Functions take and return arrays, and are cut into parts that `jobs` compute. May import
`data`, `linear`, `ot`, `jobs`, `config`, `console`, `errors` and `version`.
"""

from l2rm_jax.judging.detectors import (
    DETECTORS,
    Detector,
    FoldTask,
    Scorer,
    make_detector,
    register_detector,
)
from l2rm_jax.judging.judge import judge_pairs, rows_for
from l2rm_jax.judging.judgement import (
    JUDGEMENT_FILE,
    Judgement,
    check_same_pairs,
    is_of_pairs,
    read_judgement,
    write_judgement,
)
from l2rm_jax.judging.kept_judge import JUDGE_FILE, KeptJudge, open_judge, write_judge
from l2rm_jax.judging.log_odds import Model, product_similarity
from l2rm_jax.judging.transport_em import rematch

__all__ = [
    "DETECTORS",
    "JUDGEMENT_FILE",
    "JUDGE_FILE",
    "Detector",
    "FoldTask",
    "Judgement",
    "KeptJudge",
    "Model",
    "Scorer",
    "check_same_pairs",
    "is_of_pairs",
    "judge_pairs",
    "make_detector",
    "open_judge",
    "product_similarity",
    "read_judgement",
    "register_detector",
    "rematch",
    "rows_for",
    "write_judge",
    "write_judgement",
]
