"""Transport problems: the authors' plans and iterations, and properties of converged plans."""

import jax.numpy as jnp
import numpy as np

from l2rm_jax.ot import partial_sinkhorn
from tests.golden.fidelity.arrays import Arrays


def transport(arrays: Arrays) -> None:
    # Rectangular problems store only the number of iterations.
    for name in arrays.cases("info") + arrays.cases("n_iter"):
        problem = _Problem(arrays, name)
        problem.check_as_authors()
        problem.check_converged()


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

    def check_as_authors(self) -> None:
        """Compare mode l2rm; where the authors' plan is NaN (mass 1), ours must be finite."""
        result, stored = self.solve(self.mass, "l2rm"), self.stored
        plan = np.asarray(result.plan, np.float64)
        stored.add("plans, mode l2rm / largest", 0.0 if np.isfinite(plan).all() else np.inf)
        if "info" in stored:
            iterations, _, is_nan, mass = stored["info"]
        else:
            iterations, is_nan, mass = stored["n_iter"], False, stored["pi"].sum()
        if is_nan:
            return
        stored.check("iterations, mode l2rm", result.iterations, iterations)
        stored.add("mass, mode l2rm, relative", abs(float(result.mass) / mass - 1))
        sums = {"pi": plan, "row_sums": plan.sum(1), "col_sums": plan.sum(0)}
        for key in sums.keys() & stored:
            stored.check("plans, mode l2rm / largest", sums[key], key)

    def check_converged(self) -> None:
        """Compare mode converged with the constraints, the exact plan and a converged plan."""
        result, stored = self.solve(self.mass, "converged"), self.stored
        plan = np.asarray(result.plan, np.float64)
        # Nearly full transport at a small epsilon takes thousands of iterations in any precision.
        is_hard = self.epsilon < 0.05 and self.mass >= 0.5
        stored.add("unsolved, mode converged", float(not (result.converged or is_hard)))
        stored.add("mass, mode converged, relative", abs(plan.sum() / self.mass - 1))
        stored.add("mask and marginals", np.abs(plan[~self.mask]).max(initial=0.0))
        # A solver that has not converged must report by how much the marginals are off.
        reported = 0.0 if result.converged else float(self.mass * result.marginal_error)
        stored.add("mask and marginals", -_least_unmoved(plan) - reported)
        self._check_optimality(plan)
        if "own/pi_converged" in stored:
            # Some mass leaks through the corner of the authors' problem. Its solution is also the
            # solution of our problem, which has no corner, with the mass that theirs moved.
            theirs = stored["own/pi_converged"]
            again = self.solve(min(1.0, float(theirs.sum(dtype=np.float64))), "converged")
            if again.converged:
                stored.check("plans, converged / largest", again.plan, theirs)

    def _check_optimality(self, plan: np.ndarray) -> None:
        """Check that the plan is not cheaper than the exact one and minimises the objective.

        The other plans that move this mass, the exact one and that of another entropic problem,
        must not have a lower objective.
        """
        others = []
        if "pi" in self.exact:
            others.append(self.exact["pi"])
            self.exact.add("optimality", float(self.exact["value"]) - np.sum(plan * self.cost))
        if "second_opinion/entropic_pot" in self.stored:
            others.append(self.stored["second_opinion/entropic_pot"])
        for other in others:
            # A plan that has not converged may move more than a row's weight: not comparable.
            if _least_unmoved(other) > -1e-6:
                self.stored.add("optimality", self._objective(plan) - self._objective(other))

    def _objective(self, plan: np.ndarray) -> float:
        """Return `<plan, cost>` minus epsilon times the entropy, which includes the dummies."""
        masses = np.concatenate([plan.ravel(), *_unmoved(plan)])
        masses = masses[masses > 0]
        return np.sum(plan * self.cost) + self.epsilon * np.sum(masses * np.log(masses))


def _unmoved(plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of each row and of each column that the plan does not move."""
    n, m = plan.shape
    return 1 / n - plan.sum(1), 1 / m - plan.sum(0)


def _least_unmoved(plan: np.ndarray) -> float:
    return min(weights.min() for weights in _unmoved(plan))
