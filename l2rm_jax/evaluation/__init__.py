"""Evaluation: scores of all pairs of a split, and the recalls they give.

`scoring` runs a model over a split. `recall` computes ranks and recalls from the scores, and
`protocols` the rows of the published tables. In `two_stage`, one head proposes candidates that
another head reorders. `auroc` measures how well a score separates two classes. May import models,
data and all to their right.
"""

from l2rm_jax.evaluation.protocols import PROTOCOLS, recall_rows
from l2rm_jax.evaluation.recall import dual_softmax, recalls
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.evaluation.two_stage import Shortlist

__all__ = ["PROTOCOLS", "Scorer", "Shortlist", "dual_softmax", "recall_rows", "recalls"]
