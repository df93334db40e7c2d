"""Evaluation: scores of all pairs of a split, and the recalls that they give.

`scoring` runs a model over a split, `recall` ranks (NumPy only) and knows the published protocols,
`two_stage` lets one head propose candidates for another. May import models, data and all to their
right.
"""

from l2rm_jax.evaluation.recall import PROTOCOLS, dual_softmax, recall_rows, recalls
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.evaluation.two_stage import Shortlist

__all__ = ["PROTOCOLS", "Scorer", "Shortlist", "dual_softmax", "recall_rows", "recalls"]
