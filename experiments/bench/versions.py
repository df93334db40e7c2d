"""Is this version as fast as an older one? Both run in turns, each run in a process of its own.

git worktree add --detach /tmp/before COMMIT
python -m experiments.bench.versions --before=/tmp/before --csv=versions.csv

First the compiled programs of both are compared: how many of their operations are in one alone,
and how many numbers the largest of these has. Then a round takes a training step and a scored test
set with each head of `--heads`, in both versions one after the other, the older one first in every
second round. The table has the median and the extremes of the ratios of neighbouring runs. Nothing
else should run on the machine meanwhile; a ratio is worth no more than they spread.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from experiments.csv_rows import write_rows
from experiments.papers.sweep import start

ROOT = Path(__file__).resolve().parents[2]
SIZES = ("--embed_dim=256", "--sim_dim=64")
# What is measured, and the number of its report that counts.
BENCHMARKS = {
    "step": (("experiments.bench.step", "--batch=32", *SIZES), "step_s"),
    "score": (("experiments.bench.score", "--images=200", "--captions=1000", *SIZES), "score_s"),
}
# Shape and name of an operation in the text of a program.
OPERATION = re.compile(r"^ +(?:ROOT )?%\S+ = (\(.*?\)|\S+) ([\w-]+)\(", re.M)
# Operations that compute nothing themselves.
PASSIVE = {
    "bitcast", "call", "conditional", "constant", "fusion", "get-tuple-element", "parameter",
    "tuple", "while",
}  # fmt: skip


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    flags.add_argument("--before", type=Path, required=True, help="checkout of the older version")
    flags.add_argument("--heads", default="saf,sgr,vse", help="heads of the models")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--repeats", type=int, default=15, help="steps or test sets of one run")
    flags.add_argument("--csv", type=Path, help="write the table to this file")
    sizes = flags.parse_args()
    cases = [(what, head) for what in BENCHMARKS for head in sizes.heads.split(",")]
    programs = {
        case: compare_programs(*(operations(tree, *case) for tree in (sizes.before, ROOT)))
        for case in cases
    }
    ratios = {case: [] for case in cases}
    for turn in range(sizes.rounds):
        for case in cases:
            order = (ROOT, sizes.before) if turn % 2 else (sizes.before, ROOT)
            seconds = {tree: median_seconds(tree, *case, sizes.repeats) for tree in order}
            ratios[case].append(seconds[ROOT] / seconds[sizes.before])
            print(f"{turn + 1}/{sizes.rounds}  {' '.join(case)}  {ratios[case][-1]:.3f}")
    rows = [row(*case, programs[case], ratios[case]) for case in cases]
    for each in rows:
        print("  ".join(f"{name} {value}" for name, value in each.items()))
    if sizes.csv:
        write_rows(sizes.csv, rows)


def run(tree: Path, what: str, head: str, flags: list[str], of_compiler: str = "") -> None:
    """Run a benchmark of a checkout in a process of its own, with more flags of the compiler.

    Raises:
      subprocess.CalledProcessError: the benchmark failed; its message is on screen.
    """
    (module, *own), _ = BENCHMARKS[what]
    xla_flags = f"{os.environ.get('XLA_FLAGS', '')} {of_compiler}".strip()
    subprocess.run(
        [sys.executable, "-m", module, *own, f"--head={head}", *flags],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree.resolve()), "XLA_FLAGS": xla_flags},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def median_seconds(tree: Path, what: str, head: str, repeats: int) -> float:
    """Return the median seconds of a benchmark of a checkout."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run(tree, what, head, [f"--repeats={repeats}", f"--json={file.name}"])
        return json.loads(Path(file.name).read_text())[BENCHMARKS[what][1]]["median"]


def operations(tree: Path, what: str, head: str) -> Counter[tuple[str, str]]:
    """Count the operations, by shape and name, of all programs that a benchmark compiles."""
    with tempfile.TemporaryDirectory() as directory:
        dump = f"--xla_dump_to={directory} --xla_dump_hlo_as_text"
        run(tree, what, head, ["--repeats=1"], dump)
        files = Path(directory).glob("*after_optimizations.txt")
        found = (match.groups() for file in files for match in OPERATION.finditer(file.read_text()))
        return Counter(each for each in found if each[1] not in PASSIVE)


def compare_programs(before: Counter, now: Counter) -> dict[str, int]:
    """Return how many operations there are, how many are in one alone, and the largest of these."""
    alone = (before - now) + (now - before)
    return {
        "operations": now.total(),
        "in one alone": alone.total(),
        "largest of these": max((numbers(shape) for shape, _ in alone), default=0),
    }


def numbers(shape: str) -> int:
    """Return how many numbers the largest array of a shape has: 12 for `(f32[3,4]{1,0}, s32[])`."""
    sizes = (found.split(",") for found in re.findall(r"\[([\d,]*)\]", shape))
    return max((math.prod(int(size) for size in each if size) for each in sizes), default=0)


def row(what: str, head: str, programs: dict[str, int], ratios: list[float]) -> dict[str, object]:
    """Return the row of the table; times of this version are in units of the older one's."""
    times = {"time": np.median(ratios), "least": min(ratios), "most": max(ratios)}
    return {
        "what": what,
        "head": head,
        **programs,
        "rounds": len(ratios),
        **{name: f"{value:.2f}" for name, value in times.items()},
    }


if __name__ == "__main__":
    start(main)
