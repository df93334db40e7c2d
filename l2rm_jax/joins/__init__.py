"""Misaligned rows: find what went wrong when captions were joined to images, and undo it.

Most real mismatches are no noise but a rule: captions are late by one row, one side is sorted, two
folders have the same file names. A rule can be found from the order of the rows and the ids.

* `find` is the face: `find_misaligned`. `sentences` says a finding in words.
* `table` describes the rows, `evidence` fits models to a join (`known` has models of other pairs),
  `emission` weighs a row for a map.
* `maps` are the rules, `keys` reads ids; `windows` and `offers` propose maps where rows fit badly.
* `path` decides where each map holds; `search` does all this until nothing changes.
* `blind` starts where the stored join has nothing to fit to.
* `findings` and `unexplained` name the result, `placebo` tests it.

Functions take and return arrays. May import `linear` and `errors`.
"""

from l2rm_jax.joins.find import Finding, Misaligned, find_misaligned
from l2rm_jax.joins.known import KnownModels

__all__ = ["Finding", "KnownModels", "Misaligned", "find_misaligned"]
