"""Read the TPU compiler's estimates from the text of an optimised program."""

import re
from functools import cache

NAME = r"%([^ ,)}]+)"


def estimated_cycles(program: str) -> int:
    """Return the cycles that the compiler expects of a program, without communication.

    A loop counts as often as it runs, and of several branches the longest counts. A loop whose end
    depends on the data counts once: transport, and the gradients of hardest negatives.

    Args:
      program: the text of an optimised program, `Compiled.as_text()`.

    Raises:
      ValueError: the program holds no estimates because it was not compiled for a TPU.
    """
    bodies, entry = _computations(program)

    @cache
    def body_cycles(name: str) -> int:
        return sum(map(operation_cycles, bodies[name]))

    def operation_cycles(line: str) -> int:
        if " while(" in line:
            condition, body = (_called(line, part)[0] for part in ("condition", "body"))
            return _trip_count(bodies[condition]) * body_cycles(body)
        if " conditional(" in line:
            parts = "branch_computations", "true_computation", "false_computation"
            return max(body_cycles(name) for part in parts for name in _called(line, part))
        if " call(" in line:
            return body_cycles(*_called(line, "to_apply"))
        estimate = re.search(r'"estimated_cycles":"(\d+)"', line)
        return int(estimate[1]) if estimate else 0

    cycles = body_cycles(entry)
    if not cycles:
        raise ValueError("no estimates in the program, expected one that was compiled for a TPU")
    return cycles


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation's operations, and the name of the entry computation."""
    bodies, entry = {}, ""
    for line in program.splitlines():
        start = re.match(rf"(ENTRY )?{NAME} .*{{$", line)
        if start:
            operations = bodies[start[2]] = []
            entry = start[2] if start[1] else entry
        elif re.match(r"  (ROOT )?%", line):
            operations.append(line)
    return bodies, entry


def _called(line: str, part: str) -> list[str]:
    """Return the computations that an operation calls as `part`, such as "body"."""
    called = re.search(rf"[ ,]{part}=(\{{[^}}]*\}}|{NAME})", line)
    return re.findall(NAME, called[1]) if called else []


def _trip_count(condition: list[str]) -> int:
    """Return how often a loop runs that counts to a constant; 1 for any other loop."""
    *before, last = condition
    limits = [re.search(r" s32\[\][^ ]* constant\((\d+)\)", line) for line in before]
    counts = [int(limit[1]) for limit in limits if limit]
    is_counted = " compare(" in last and "direction=LT" in last and len(counts) == 1
    return counts[0] if is_counted else 1
