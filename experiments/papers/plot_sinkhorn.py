"""Error against iterations of three formulations of partial transport, in float32 and float64.

Compares our solver with Sinkhorn on the extended problem: with the literal xi, with xi dropped and
the authors' corner A, and with the corner forbidden. The first two solve the authors' problem,
which moves more mass than asked for: see l2rm_jax/ot/README.md.

python -m experiments.papers.plot_sinkhorn --out=figures
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from matplotlib.figure import Figure

from experiments.bench.solver import draw
from experiments.figure import PALETTE, save
from experiments.script import new_parser, start
from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.ot.extended import extend

SIZE, MASS, ITERATIONS = 128, 0.1, 300
EPSILONS = (0.07, 0.01)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--out", required=True, type=Path, help="directory of the figure")
    save(plot(), parser.parse_args().out, "sinkhorn")


def plot() -> Figure:
    figure = Figure(figsize=(8.4, 4.2))
    panels = figure.subplots(1, len(EPSILONS), sharey=True)
    for axes, epsilon in zip(panels, EPSILONS, strict=True):
        cost = draw("learned", SIZE, 1)
        largest = float(cost.max())
        # The curves of the last two nearly coincide, so one line is wide and lies under the other.
        formulations = {
            "literal xi, corner A": (100 * largest, largest, 1.5),
            "xi dropped, corner A": (0.0, largest, 5.0),
            "xi dropped, corner forbidden": (0.0, np.inf, 1.5),
        }
        for colour, (name, (xi, corner, width)) in zip(PALETTE, formulations.items(), strict=False):
            for style, is_double in (("-", False), (":", True)):
                with jax.enable_x64(is_double):
                    errors = sinkhorn_errors(cost, epsilon, xi, corner)
                line = {"color": colour, "linewidth": width, "alpha": 0.8}
                label = None if is_double else name
                axes.semilogy(range(1, ITERATIONS + 1), errors, style, label=label, **line)
        counts = range(1, 60)
        errors = [solver_error(cost, epsilon, count) for count in counts]
        axes.semilogy(counts, errors, "-", color="black", label="l2rm_jax")
        axes.set(xlabel="iteration", title=f"epsilon {epsilon}", ylim=(1e-8, 3))
    panels[0].set_ylabel("L1 error of the marginals")
    figure.suptitle(f"{SIZE} x {SIZE}, mass {MASS}: float32 (lines) and float64 (dots)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@partial(jax.jit, static_argnums=(1, 2, 3))
def sinkhorn_errors(cost, epsilon, xi, corner):
    """Return the L1 error of the row sums after each iteration, from zero potentials."""
    weights = jnp.full(len(cost), 1 / len(cost))
    cost = cost.astype(weights.dtype)
    problem = extend(cost, MASS, weights, weights, jnp.ones(cost.shape, bool), xi=xi, corner=corner)
    scaled = problem.cost / epsilon

    def step(g, _):
        f = jnp.log(problem.p) - logsumexp(g[None, :] - scaled, axis=1)
        g = jnp.log(problem.q) - logsumexp(f[:, None] - scaled, axis=0)
        return g, jnp.abs(jnp.exp(f[:, None] + g[None, :] - scaled).sum(1) - problem.p).sum()

    return lax.scan(step, jnp.zeros_like(problem.q), length=ITERATIONS)[1]


def solver_error(cost, epsilon: float, iterations: int) -> float:
    """Return the L1 error of our solver after `iterations`, at least 1e-9."""
    result = partial_sinkhorn(cost, MASS, epsilon=epsilon, threshold=0.0, max_iterations=iterations)
    return max(MASS * float(result.marginal_error), 1e-9)


if __name__ == "__main__":
    start(main)
