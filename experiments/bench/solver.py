"""Time of partial transport solvers to an error: `python -m experiments.bench.solver --json=FILE`.

Each solver is warmed up (compiled) and then timed, the best of some runs. Takes some minutes; the
flags widen or narrow it: `--sizes 32,128,512,2048,4096 --batches 1,16,64,256` is the full range.
Problems: `random`, uniform costs; `learned`, one less the cosine of noisy pairs of features.
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

from experiments.bench.measure import processor
from experiments.bench.solvers import LOOPS, SOLVERS

MASS = 0.1  # L2RM's rho
# Largest size of the slow ones, of which a batch is timed on its first problems, and scaled up.
SLOW = {
    "ott-jax, literal xi": 1024,
    "POT": 512,
    "POT, log domain": 512,
    "authors' loop, NumPy": 1024,
}
FEW = 4
LONG = 2.0  # seconds after which a solver is not run again


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
    def listed(kind):
        return lambda text: [kind(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--kinds", type=listed(str), default=["random", "learned"])
    parser.add_argument("--sizes", type=listed(int), default=[32, 128, 512])
    parser.add_argument("--batches", type=listed(int), default=[1, 64])
    parser.add_argument("--epsilons", type=listed(float), default=[0.01, 0.07])
    parser.add_argument("--targets", type=listed(float), default=[1e-3, 1e-5])
    parser.add_argument("--repeats", type=int, default=5, help="runs, of which the best counts")
    return parser.parse_args()


def draw(kind: str, n: int, batch: int) -> np.ndarray:
    """Costs `[batch, n, n]`, or `[n, n]` for a batch of one."""
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
        sys.exit(f"--kinds: {kind}, expected random or learned")
    return (costs if batch > 1 else costs[0]).astype(np.float32)


def bench(costs, epsilon: float, target: float, repeats: int):
    n, batch = costs.shape[-1], len(costs) if costs.ndim == 3 else 1
    for name, make in {**SOLVERS, **(LOOPS if batch > 1 else {})}.items():
        if n > SLOW.get(name, n):
            continue
        few = costs[:FEW] if batch > 1 and name in SLOW else costs
        run = make(few, MASS, epsilon, target)
        run()
        times = []
        while len(times) < repeats and sum(times) < LONG:
            start = time.perf_counter()
            found = run()
            times.append(time.perf_counter() - start)
        scale = batch / len(few) if batch > 1 else 1.0
        yield {
            "epsilon": epsilon,
            "solver": name,
            "target": target,
            "seconds": min(times) * scale,
            "error": found.error,
            "iterations": found.iterations,
        }


def line(row: dict) -> str:
    cells = [row["problem"], row["n"], row["batch"], row["epsilon"], row["solver"]]
    # A little beyond is rounding, of the error's own sums too.
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
