"""Exact optimum of a masked partial transport problem, by HiGHS through SciPy."""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, vstack


def exact_cost(cost, mass, a, b, mask) -> float | None:
    """Least cost of moving `mass`, or None if the mask makes that impossible."""
    rows, columns = np.nonzero(mask)
    pairs, ones = np.arange(len(rows)), np.ones(len(rows))
    sides = ((rows, len(a)), (columns, len(b)))
    sums = vstack([csr_matrix((ones, (item, pairs)), (n, len(rows))) for item, n in sides])
    result = linprog(
        np.asarray(cost, float)[mask],
        A_ub=sums,
        b_ub=np.concatenate([a, b]).astype(float),
        A_eq=ones[None],
        b_eq=[float(mass)],
        method="highs",
    )
    return result.fun if result.status == 0 else None
