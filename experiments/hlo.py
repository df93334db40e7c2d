"""Reads what a TPU's compiler has made of a program."""

import re
from functools import cache

NAME = r"%([^ ,)}]+)"


def estimated_cycles(program: str) -> int:
    """Cycles that the compiler expects of an optimised program (`Compiled.as_text()`), apart from
    exchange between devices.

    A loop counts as often as it turns, of branches the longest. A loop that the data end counts
    once: transport, and the gradients of hardest negatives.

    Raises:
      ValueError: the program holds no estimates, as it was not compiled for a TPU.
    """
    bodies, first = _bodies(program)

    @cache
    def of_body(name: str) -> int:
        return sum(map(of_operation, bodies[name]))

    def of_operation(line: str) -> int:
        if " while(" in line:
            condition, body = (_named(line, part)[0] for part in ("condition", "body"))
            return _turns(bodies[condition]) * of_body(body)
        if " conditional(" in line:
            parts = "branch_computations", "true_computation", "false_computation"
            return max(of_body(name) for part in parts for name in _named(line, part))
        if " call(" in line:
            return of_body(*_named(line, "to_apply"))
        found = re.search(r'"estimated_cycles":"(\d+)"', line)
        return int(found[1]) if found else 0

    cycles = of_body(first)
    if not cycles:
        raise ValueError("no estimates: expected a program that was compiled for a TPU")
    return cycles


def _bodies(program: str) -> tuple[dict[str, list[str]], str]:
    """The operations of each computation, a line each, and the name of the first to run."""
    bodies, first = {}, ""
    for line in program.splitlines():
        start = re.match(rf"(ENTRY )?{NAME} .*{{$", line)
        if start:
            operations = bodies[start[2]] = []
            first = start[2] if start[1] else first
        elif re.match(r"  (ROOT )?%", line):
            operations.append(line)
    return bodies, first


def _named(line: str, part: str) -> list[str]:
    """The computations that an operation names as this part of it."""
    found = re.search(rf"[ ,]{part}=(\{{[^}}]*\}}|{NAME})", line)
    return re.findall(NAME, found[1]) if found else []


def _turns(condition: list[str]) -> int:
    """Of a loop that counts to a constant; 1 of any other."""
    *before, last = condition
    limits = [re.search(r" s32\[\][^ ]* constant\((\d+)\)", line) for line in before]
    counts = [int(limit[1]) for limit in limits if limit]
    counted = " compare(" in last and "direction=LT" in last and len(counts) == 1
    return counts[0] if counted else 1
