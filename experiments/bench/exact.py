"""Time that solvers of partial transport take to come near the exact optimum.

python -m experiments.bench.exact --csv=FILE
python -m experiments.bench.exact --sizes=128,512 --batches=1 --csv=FILE

All solve the same random problems: uniform costs and weights, half of the mass, and `masked` ones
with a fifth of the pairs forbidden. A plan counts once it is feasible after rounding and its cost
is within a relative gap of 1e-3 of the optimum, which HiGHS gives. Times are CPU times of the whole
process, so that other work on the machine counts little. Each solver's entropy is the largest of
1/100, 1/300, 1/1000, ... of the optimal cost of a unit of mass that suffices, found beforehand for
ours and given to all; ours starts from larger ones. Peers run until they are there or for `LIMIT`
seconds. Of a batch, peers and HiGHS solve the first two problems, and the time is scaled up. At
2048, HiGHS takes too long: there the optimum is ours at a tenth of the entropy.
"""

import time
from pathlib import Path

import jax
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, vstack

from experiments.bench.partial_peers import Dual, apdagd, aspot, round_pot
from experiments.script import new_parser, values_of, write_rows
from l2rm_jax.ot import partial_sinkhorn

SHARE, GAP, LIMIT, FEW, CHECKS = 0.5, 1e-3, 5.0, 2, 10
LARGEST_EXACT = 512
EPSILONS = (1e-2, 3e-3, 1e-3, 3e-4)  # in units of the optimal cost of a unit of mass
LARGER = (64, 16, 4)  # epsilons that come before, in units of the last


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sizes", type=values_of(int), default=[128, 512, 2048])
    parser.add_argument("--batches", type=values_of(int), default=[1, 64])
    parser.add_argument("--csv", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    rows = []
    for n in arguments.sizes:
        for batch in arguments.batches:
            if n * n * batch > 2**25:
                continue  # the costs of a batch of 2048 would fill a gigabyte
            for masked in (False, True):
                rows.append({"n": n, "batch": batch, "masked": masked, **bench(n, batch, masked)})
                print("  ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
                if arguments.csv:
                    write_rows(arguments.csv, rows)


def bench(n: int, batch: int, masked: bool) -> dict:
    rng = np.random.default_rng(n)
    costs = rng.uniform(size=(batch, n, n)).astype(np.float32)
    masks = rng.uniform(size=costs.shape) >= (0.2 if masked else 0.0)
    weights = np.full(n, 1 / n, np.float32)
    few = min(batch, FEW)
    result = {}
    if n <= LARGEST_EXACT:
        exact, seconds = timed(
            lambda: np.array(
                [exact_cost(costs[k], SHARE, weights, weights, masks[k]) for k in range(few)]
            )
        )
        result["highs_s"] = seconds * batch / few
    else:
        guess = ours(costs[:few], masks[:few], np.full(few, 1e-5, np.float32))
        exact = np.asarray(guess.cost)
    for share in EPSILONS:
        epsilon = np.full(batch, share * exact.mean() / SHARE, np.float32)
        found = ours(costs, masks, epsilon)
        gap = np.asarray(found.cost)[:few] / exact - 1
        if gap.max() <= GAP:
            break
    _, seconds = timed(lambda: jax.block_until_ready(ours(costs, masks, epsilon)))
    result |= {"epsilon": share, "ours_s": seconds, "ours_gap": float(gap.max())}
    for name, solver in (("aspot", aspot), ("apdagd", apdagd)):
        ends = [peer(solver, costs[k], masks[k], float(epsilon[k]), exact[k]) for k in range(few)]
        result[f"{name}_s"] = sum(end[0] for end in ends) * batch / few
        result[f"{name}_gap"] = max(end[1] for end in ends)
        result[f"{name}_ratio"] = result[f"{name}_s"] / seconds
    return {k: float(f"{v:.3g}") for k, v in result.items()}


def exact_cost(cost, mass, a, b, mask) -> float | None:
    """Return the least cost of moving `mass` by HiGHS; None if the mask makes that impossible."""
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


def timed(call):
    start = time.process_time()
    found = call()
    return found, time.process_time() - start


def ours(costs, masks, epsilon):
    """Solve at larger epsilons first, and round at the last."""
    start = np.zeros(costs.shape[::2], np.float32)
    problem = {"mask": masks, "max_iterations": 300, "round": True}
    for factor in LARGER:
        larger = partial_sinkhorn(
            costs, SHARE, epsilon=factor * epsilon, start=start, threshold=1e-2, **problem
        )
        start = larger.g
    return partial_sinkhorn(costs, SHARE, epsilon=epsilon, start=start, threshold=1e-4, **problem)


def peer(solver, cost, mask, epsilon: float, exact: float) -> tuple[float, float]:
    """CPU seconds of a peer's iterations, checks left out, and the gap that it reached."""
    cost = np.where(mask, cost.astype(float), np.inf)
    n = len(cost)
    # Weights in units of the mean weight, so that the dual is scaled for a first step of 1.
    dual = Dual(cost / epsilon, np.ones(n), np.ones(n), SHARE * n)
    spent, gap, plans, count = 0.0, np.inf, solver(dual), CHECKS
    finite = np.where(mask, cost, 0.0)
    while spent < LIMIT:
        start = time.process_time()
        for _ in range(count):
            plan = next(plans)
        spent += time.process_time() - start
        rounded = round_pot(plan, SHARE * n, np.ones(n), np.ones(n), cost) / n
        # Mass that rounding could not place counts at the mean cost of the rest.
        gap = abs((rounded * finite).sum() / exact * SHARE / max(rounded.sum(), 1e-9) - 1)
        if gap <= GAP and rounded.sum() > SHARE * (1 - GAP):
            break
        count = max(CHECKS, int(0.05 * count * LIMIT / max(spent, 1e-3)) if spent < 1 else count)
    return spent, float(gap)


if __name__ == "__main__":
    main()
