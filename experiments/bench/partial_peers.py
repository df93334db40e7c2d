"""Published first-order solvers of partial transport, from their papers, in NumPy and float64.

Both minimise, over plans X and kept weights p and q, <C, X> + gamma * (sum of x log x - x) subject
to X 1 + p = a, X' 1 + q = b and sum X = s, through the smooth dual in y (rows), z (columns) and t
(mass). Masked pairs have an infinite cost, so that their entries stay zero. Each yields plans, one
per iteration, before any rounding; `round_pot` makes a plan feasible.

The variants:

- APDAGD is adaptive accelerated gradient descent on the dual with a line search and averaged primal
  iterates (Nguyen et al., AAAI 2024, after Dvurechensky et al., ICML 2018). The marginals are not
  smoothed, and the solver has no stop of its own: the benchmark stops it.
- ASPOT's text was at hand in extracts only. This is the accelerated Sinkhorn algorithm of Lin et
  al. on the three blocks y, z and t instead of two: a Nesterov step, kept if it goes downhill, then
  an exact minimisation over the block whose constraints are off the most. It follows the
  abstract, and perhaps not the paper's algorithm in each detail.

References:
    Nguyen et al., On Partial Optimal Transport: Revising the Infeasibility of Sinkhorn and
    Efficient Gradient Methods, AAAI 2024 (arXiv 2312.13970).
    Accelerated Sinkhorn Algorithms for Partial Optimal Transport, 2026 (arXiv 2601.17196).
    Lin, Ho, Jordan, On the Efficiency of Entropic Regularized Algorithms for Optimal Transport,
    JMLR 2022.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Dual(NamedTuple):
    """The smooth convex dual of one problem; a point is the vector (y, z, t) in units of gamma."""

    scaled: np.ndarray  # cost / gamma, [n, m]
    a: np.ndarray
    b: np.ndarray
    mass: float

    def primal(self, point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Plan and kept weights that belong to a point."""
        y, z, t = self.split(point)
        plan = np.exp(np.minimum(y[:, None] + z[None, :] + t - self.scaled, 50.0))
        return plan, np.exp(np.minimum(y, 50.0)), np.exp(np.minimum(z, 50.0))

    def split(self, point):
        n = len(self.a)
        return point[:n], point[n:-1], point[-1]

    def value(self, point, primal=None) -> float:
        plan, p, q = primal or self.primal(point)
        y, z, t = self.split(point)
        return plan.sum() + p.sum() + q.sum() - self.a @ y - self.b @ z - self.mass * t

    def sums(self, primal) -> np.ndarray:
        """Weights and mass of a primal point, which the constraints compare with `target`."""
        plan, p, q = primal
        return np.concatenate([plan.sum(1) + p, plan.sum(0) + q, [plan.sum()]])

    @property
    def target(self) -> np.ndarray:
        return np.concatenate([self.a, self.b, [self.mass]])

    def gradient(self, primal) -> np.ndarray:
        return self.sums(primal) - self.target


def apdagd(dual: Dual) -> Iterator[np.ndarray]:
    """Yield the averaged plan after each accepted step, endlessly."""
    zeta = eta = np.zeros(len(dual.a) + len(dual.b) + 1)
    weight, smoothness, average = 0.0, 1.0, np.zeros_like(dual.scaled)
    while True:
        while True:
            step = (1 + np.sqrt(1 + 4 * smoothness * weight)) / (2 * smoothness)
            tau = step / (weight + step)
            point = tau * zeta + (1 - tau) * eta
            primal = dual.primal(point)
            gradient = dual.gradient(primal)
            new_zeta = zeta - step * gradient
            new_eta = tau * new_zeta + (1 - tau) * eta
            change = new_eta - point
            bound = dual.value(point, primal) + gradient @ change
            if dual.value(new_eta) <= bound + smoothness / 2 * change @ change:
                break
            smoothness *= 2
        zeta, eta, weight, smoothness = new_zeta, new_eta, weight + step, smoothness / 2
        average = tau * primal[0] + (1 - tau) * average
        yield average


def aspot(dual: Dual) -> Iterator[np.ndarray]:
    """Yield the plan after each block update, endlessly."""
    n, theta, total = len(dual.a), 1.0, dual.a.sum() + dual.b.sum() - dual.mass
    blocks = slice(0, n), slice(n, -1), slice(-1, None)
    least = moving = np.zeros(n + len(dual.b) + 1)

    def value(point, primal) -> float:
        """The dual in its normalised form, whose gradient is 3-Lipschitz."""
        return np.log(sum(x.sum() for x in primal)) - dual.target @ point / total

    primal = dual.primal(least)
    while True:
        between = (1 - theta) * least + theta * moving
        sums = dual.sums(dual.primal(between))
        norm = sums[:n].sum() + sums[n:-1].sum() - sums[-1]
        change = -(sums / norm - dual.target / total) / (3 * theta)
        moving = moving + change
        ahead = between + theta * change
        primal_ahead = dual.primal(ahead)
        # Only downhill: else the accelerated point would spoil the exact block updates.
        if value(ahead, primal_ahead) <= value(least, primal):
            least, primal = ahead, primal_ahead
        sums = dual.sums(primal)
        block = max(blocks, key=lambda rows: np.abs(sums[rows] - dual.target[rows]).sum())
        least = least.copy()
        # In closed form: scale the sums of the block's constraints to their targets.
        least[block] -= np.log(np.maximum(sums[block], 1e-300) / dual.target[block])
        primal = dual.primal(least)
        theta *= (np.sqrt(theta**2 + 4) - theta) / 2
        yield primal[0]


def round_pot(plan, mass, a, b, cost) -> np.ndarray:
    """ROUND-POT: scale rows, columns and mass down, then add an outer product of the rest.

    The outer product would use masked pairs, of infinite cost; there it is left out, and so a
    masked plan may move less than `mass`.
    """
    plan = plan * np.minimum(1, a / np.maximum(plan.sum(1), 1e-300))[:, None]
    plan = plan * np.minimum(1, b / np.maximum(plan.sum(0), 1e-300))[None, :]
    plan = plan * min(1, mass / max(plan.sum(), 1e-300))
    missing = mass - plan.sum()
    if missing <= 0:
        return plan
    rows, columns = a - plan.sum(1), b - plan.sum(0)
    fill = missing * np.outer(rows / rows.sum(), columns / columns.sum())
    return plan + np.where(np.isfinite(cost), fill, 0.0)
