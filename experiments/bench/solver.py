"""Time that partial transport solvers take to reach an error.

python -m experiments.bench.solver --json=FILE

Compiles each solver, times it several times and keeps the best time. Takes some minutes; the flags
choose the problems, `--sizes 32,128,512,2048,4096 --batches 1,16,64,256` is the full range. Costs
are `random` (uniform) or `learned` (one minus the cosine of noisy pairs of features).
"""

import argparse
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np

from experiments.bench.solvers import LOOPS, SOLVERS
from experiments.script import new_parser, processor, values_of

MASS = 0.1  # L2RM's rho
# Slow solvers and the largest size they are timed at. Of a batch, only the first `FEW` problems are
# timed, and the time is scaled up.
SLOW = {
    "ott-jax, literal xi": 1024,
    "POT": 512,
    "POT, log domain": 512,
    "authors' loop, NumPy": 1024,
}
FEW = 4
LONG = 2.0  # seconds in total after which a solver is not run again


def main() -> None:
    arguments = parse()
    rows = []
    print("| problem | n | batch | epsilon | solver | to | ms | error reached | iterations |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in arguments.kinds:
        for n in arguments.sizes:
            for batch in arguments.batches:
                costs = draw(kind, n, batch)
                for epsilon in arguments.epsilons:
                    for target in arguments.targets:
                        for row in bench(costs, epsilon, target, arguments.repeats):
                            rows.append({"problem": kind, "n": n, "batch": batch, **row})
                            print(line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


def parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--kinds", type=values_of(str), default=["random", "learned"])
    parser.add_argument("--sizes", type=values_of(int), default=[32, 128, 512])
    parser.add_argument("--batches", type=values_of(int), default=[1, 64])
    parser.add_argument("--epsilons", type=values_of(float), default=[0.01, 0.07])
    parser.add_argument("--targets", type=values_of(float), default=[1e-3, 1e-5])
    parser.add_argument("--repeats", type=int, default=5, help="runs; the best counts")
    return parser.parse_args()


def draw(kind: str, n: int, batch: int) -> np.ndarray:
    """Return costs `[batch, n, n]`, or `[n, n]` for a batch of one."""
    rng = np.random.default_rng(0)
    if kind == "random":
        costs = rng.uniform(size=(batch, n, n))
    elif kind == "learned":
        images = rng.standard_normal((batch, n, 16))
        captions = images + 0.5 * rng.standard_normal(images.shape)
        images, captions = (
            x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (images, captions)
        )
        costs = np.maximum(1.0 - images @ captions.swapaxes(1, 2), 1e-10)
    else:
        sys.exit(f"--kinds: found {kind}, expected random or learned")
    return (costs if batch > 1 else costs[0]).astype(np.float32)


def bench(costs, epsilon: float, target: float, repeats: int, solvers=None):
    """Yield a result for each solver: seconds of the best run, error reached and iterations."""
    n, batch = costs.shape[-1], len(costs) if costs.ndim == 3 else 1
    for name, make in (solvers or {**SOLVERS, **(LOOPS if batch > 1 else {})}).items():
        if n > SLOW.get(name, n):
            continue
        few = costs[:FEW] if batch > 1 and name in SLOW else costs
        run = make(few, MASS, epsilon, target)
        run()
        times = []
        while len(times) < repeats and sum(times) < LONG:
            start = time.perf_counter()
            outcome = run()
            times.append(time.perf_counter() - start)
        scale = batch / len(few) if batch > 1 else 1.0
        yield {
            "epsilon": epsilon,
            "solver": name,
            "target": target,
            "seconds": min(times) * scale,
            "error": outcome.error,
            "iterations": outcome.iterations,
        }


def line(row: dict) -> str:
    cells = [row["problem"], row["n"], row["batch"], row["epsilon"], row["solver"]]
    # An error slightly above the target is rounding, also of the error itself.
    reached = "" if row["error"] <= 1.05 * row["target"] else " (not there)"
    cells += [f"{row['target']:.0e}", f"{1e3 * row['seconds']:.3g}"]
    cells += [f"{row['error']:.1e}{reached}", row["iterations"]]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def machine() -> dict:
    packages = ("jax", "jaxlib", "ott-jax", "POT", "numpy", "scipy")
    return {
        "device": jax.devices()[0].device_kind,
        "processor": processor(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


if __name__ == "__main__":
    main()
