"""Transport problems: the authors' plans and iterations, and properties of converged plans."""

import jax.numpy as jnp
import numpy as np

from l2rm_jax.ot import partial_sinkhorn
from tests.golden.fidelity.arrays import Arrays, Errors, difference


def transport(arrays: Arrays) -> Errors:
    # Rectangular problems store only the number of iterations.
    names = arrays.cases("info") + arrays.cases("n_iter")
    for name in names:
        problem = _Problem(arrays, name)
        yield from problem.as_authors()
        yield from problem.converged()


class _Problem:
    """One problem that the authors' code solved, and its stored arrays."""

    def __init__(self, arrays: Arrays, name: str):
        kind, setting = name.split("/")
        letters = "abcdefghijklmnopqrstuvwxyz"
        epsilon, mass, masked = (float(part.lstrip(letters)) for part in setting.split("_"))
        self.stored = arrays.under(f"{name}/")
        # The exact plans do not depend on epsilon, so their keys have none.
        self.exact = arrays.under(f"{kind}/second_opinion/exact_{setting.split('_', 1)[1]}/")
        self.cost, self.epsilon, self.mass = arrays[f"{kind}/cost"], epsilon, mass
        shape = self.cost.shape
        self.mask = ~np.eye(*shape, dtype=bool) if masked else np.ones(shape, bool)

    def solve(self, mass: float, mode: str):
        return partial_sinkhorn(
            self.cost, mass, epsilon=self.epsilon, mask=jnp.asarray(self.mask), mode=mode
        )

    def as_authors(self) -> Errors:
        """Compare mode l2rm; where the authors' plan is NaN (mass 1), ours must be finite."""
        result = self.solve(self.mass, "l2rm")
        plan = np.asarray(result.plan, np.float64)
        yield "plans, mode l2rm / largest", 0.0 if np.isfinite(plan).all() else np.inf
        if "info" in self.stored:
            iterations, _, is_nan, mass = self.stored["info"]
        else:
            iterations, is_nan, mass = self.stored["n_iter"], False, self.stored["pi"].sum()
        if is_nan:
            return
        yield "iterations, mode l2rm", abs(int(result.iterations) - int(iterations))
        yield "mass, mode l2rm, relative", abs(float(result.mass) / mass - 1)
        sums = {"pi": plan, "row_sums": plan.sum(1), "col_sums": plan.sum(0)}
        for key, ours in sums.items():
            if key in self.stored:
                error = difference(ours, self.stored[key], relative=True)
                yield "plans, mode l2rm / largest", error

    def converged(self) -> Errors:
        """Compare mode converged with the constraints, the exact plan and a converged plan."""
        result = self.solve(self.mass, "converged")
        plan = np.asarray(result.plan, np.float64)
        # Nearly full transport at a small epsilon takes thousands of iterations in any precision.
        is_hard = self.epsilon < 0.05 and self.mass >= 0.5
        yield "unsolved, mode converged", float(not (result.converged or is_hard))
        yield "mass, mode converged, relative", abs(plan.sum() / self.mass - 1)
        yield "mask and marginals", np.abs(plan[~self.mask]).max(initial=0.0)
        excess = -min(weights.min() for weights in _unmoved(plan))
        # A solver that has not converged must report by how much the marginals are off.
        reported = 0.0 if result.converged else float(self.mass * result.marginal_error)
        yield "mask and marginals", excess - reported
        yield from self._optimal(plan)
        if "own/pi_converged" in self.stored:
            # Some mass leaks through the corner of the authors' problem. Its solution is also the
            # solution of our problem, which has no corner, with the mass that theirs moved.
            theirs = self.stored["own/pi_converged"]
            again = self.solve(min(1.0, float(theirs.sum(dtype=np.float64))), "converged")
            if again.converged:
                yield "plans, converged / largest", difference(again.plan, theirs, relative=True)

    def _optimal(self, plan: np.ndarray) -> Errors:
        """Check that the plan is not cheaper than the exact one and minimises the objective.

        The other plans that move this mass, the exact one and that of another entropic problem,
        must not have a lower objective.
        """
        others = []
        if "pi" in self.exact:
            others.append(self.exact["pi"])
            yield "optimality", float(self.exact["value"]) - np.sum(plan * self.cost)
        if "second_opinion/entropic_pot" in self.stored:
            others.append(self.stored["second_opinion/entropic_pot"])
        for other in others:
            # A plan that has not converged may move more than a row's weight: not comparable.
            if min(weights.min() for weights in _unmoved(other)) > -1e-6:
                yield "optimality", self._objective(plan) - self._objective(other)

    def _objective(self, plan: np.ndarray) -> float:
        """Return `<plan, cost>` minus epsilon times the entropy, which includes the dummies."""
        masses = np.concatenate([plan.ravel(), *_unmoved(plan)])
        masses = masses[masses > 0]
        return np.sum(plan * self.cost) + self.epsilon * np.sum(masses * np.log(masses))


def _unmoved(plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of each row and of each column that the plan does not move."""
    n, m = plan.shape
    return 1 / n - plan.sum(1), 1 / m - plan.sum(0)
