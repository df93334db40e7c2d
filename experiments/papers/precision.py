"""Recall in bfloat16 precision beside float32, simulated on a CPU.

python -m experiments.papers.precision --config=scenes:long --out=runs/precision --vary seed=0,1,2

A CPU multiplies in float32 whatever `precision` says. This script makes it round the factors of the
matrix products that an accelerator would round, in the forward and the backward pass; both add in
float32. So the recalls differ from an accelerator's only by the order of sums; the times say
nothing about an accelerator. The grid stops and continues like `experiments.papers.sweep`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jax.interpreters import mlir
from jax.lax import DotAlgorithmPreset, dot_general_p
from jaxlib.mlir.dialects import stablehlo

from experiments.papers.sweep import grid, load_config, parse_arguments, run_grid, start
from l2rm_jax.devices.parallel import PRECISIONS


def main() -> None:
    arguments = parse_arguments(__doc__)
    round_products()
    vary = {**arguments.vary, "precision": [*PRECISIONS]}
    config = load_config(arguments.config)
    print(table(run_grid(grid(config, vary, arguments.set), arguments.out)))


def round_products() -> None:
    """Make CPU programs of this process round as `PRECISIONS["bfloat16"]` asks, from now on."""
    mlir.register_lowering(dot_general_p, _rounded_product, platform="cpu")


def _rounded_product(ctx, *factors, dimension_numbers, precision, **_):
    """Return the StableHLO of a product, with factors rounded if its precision is bfloat16."""
    if precision == DotAlgorithmPreset[PRECISIONS["bfloat16"]]:
        bits = {"exponent_bits": 8, "mantissa_bits": 7}
        factors = [stablehlo.reduce_precision(factor, **bits) for factor in factors]
    contracted, batched = dimension_numbers
    names = ("lhs_contracting", "rhs_contracting", "lhs_batching", "rhs_batching")
    axes = zip(names, (*contracted, *batched), strict=True)
    numbers = stablehlo.DotDimensionNumbers.get(
        **{f"{name}_dimensions": [*map(int, where)] for name, where in axes}
    )
    [out] = ctx.avals_out
    result = mlir.ir.RankedTensorType.get(out.shape, mlir.dtype_to_ir_type(out.dtype))
    return [stablehlo.dot_general(result, *factors, numbers)]


def table(workdirs: Sequence[Path]) -> str:
    """Return a Markdown table of test rSums by run (rows) and precision (columns).

    Several runs get a mean and a standard deviation.

    Args:
      workdirs: directories of finished runs. Runs that differ only in the precision are neighbours.
    """
    results = [json.loads((workdir / "results.json").read_text()) for workdir in workdirs]
    rsums = np.reshape([result["rsum"] for result in results], (-1, len(PRECISIONS)))
    names = [workdir.name.rpartition("-")[0] for workdir in workdirs[:: len(PRECISIONS)]]
    rows = [*zip(names, rsums, strict=True)]
    if len(rows) > 1:
        rows += [("mean", rsums.mean(axis=0)), ("deviation", rsums.std(axis=0, ddof=1))]
    lines = [f"| run | {' | '.join(PRECISIONS)} |", "|---" * (1 + len(PRECISIONS)) + "|"]
    lines += [f"| {name} | {' | '.join(map('{:.1f}'.format, cells))} |" for name, cells in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    start(main)
