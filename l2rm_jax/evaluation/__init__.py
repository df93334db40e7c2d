"""Evaluation: scores of all pairs of a split, and the recalls they give.

`scoring` runs a model over a split. `recall` computes ranks and recalls from the scores, and
`protocols` the rows of the published tables. In `two_stage`, one head proposes candidates that
another head reorders. May import models, data and all to their right.
"""
