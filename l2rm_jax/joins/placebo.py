"""Test a finding on its own rows: its map has to fit more of them than offsets of it do."""

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.joins.evidence import LEAST_IMAGES, Evidence, Fits
from l2rm_jax.joins.findings import Named
from l2rm_jax.joins.search import Explanation
from l2rm_jax.joins.table import Table

_OFFSETS = [d for k in range(1, 11) for d in (k, -k)]


def passes(table: Table, found: Explanation, one: Named, fits: Fits) -> float:
    """Return the share of rows that fit under the repair; 0 if the finding fails the test.

    The models lack the fold of each row, and, where enough other rows are left, all rows of the
    finding. Placebos are the images of the same rows, 1 to 10 places away in the list.
    """
    join = found.join()
    others = np.ones(len(table), bool)
    others[one.rows] = False
    kept = len(np.unique(join[others & (join >= 0)]))
    fitted = others if kept >= 3 * LEAST_IMAGES and others.sum() >= 300 else None
    evidence = fits.without(join, fitted)
    rows = one.rows[join[one.rows] != table.stored[one.rows]]
    rows = rows[join[rows] >= 0]
    if not len(rows):
        return 0.0
    weight = table.stored_weight[rows]
    share = _fitting(evidence, rows, join[rows], weight)
    for d in _OFFSETS:
        images = join[rows] + d
        there = (images >= 0) & (images < len(table.images))
        if there.any() and _fitting(evidence, rows[there], images[there], weight[there]) >= share:
            return 0.0
    return share


def _fitting(
    evidence: Evidence,
    rows: Int[np.ndarray, " n"],
    images: Int[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
) -> float:
    """Return the weighted share of rows that fit these images better than a random one."""
    fits = evidence.ratio(rows, images) > 1
    return float((fits * weight).sum() / weight.sum())
