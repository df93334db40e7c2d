"""Random transport problems, and plain NumPy code that solves them."""

import numpy as np


def draw(n, m, seed=0, forbidden=0.2):
    """Draw a cost and a mask; every row and every column has an allowed pair."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(0, 1, (n, m)).astype(np.float32)
    mask = rng.uniform(size=(n, m)) >= forbidden
    mask[np.arange(n), rng.integers(m, size=n)] = True
    mask[rng.integers(n, size=m), np.arange(m)] = True
    return cost, mask


def weights(size, seed, total=1.0):
    drawn = np.random.default_rng(seed).uniform(0.5, 1.5, size)
    return (total * drawn / drawn.sum()).astype(np.float32)


def logsumexp(x, axis):
    largest = x.max(axis, keepdims=True)
    return np.log(np.exp(x - largest).sum(axis)) + largest.squeeze(axis)


def sinkhorn(scaled_cost, p, q, iterations, threshold=0.0):
    """Run Sinkhorn in float64 from zero potentials; return the plan and the iteration count."""
    log_p, log_q = (np.log(np.maximum(weights, 1e-20)) for weights in (p, q))
    g = np.zeros_like(log_q)
    for iteration in range(1, iterations + 1):  # noqa: B007
        f = log_p - logsumexp(g - scaled_cost, 1)
        g = log_q - logsumexp(f[:, None] - scaled_cost, 0)
        plan = np.exp(f[:, None] + g - scaled_cost)
        if np.abs(plan.sum(1) - p).sum() < threshold:
            break
    return plan, iteration
