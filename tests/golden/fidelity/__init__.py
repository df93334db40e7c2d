"""Compare our code with arrays that the authors' code computed from the same inputs.

`python -m tests.golden.fidelity` prints the table of errors, which the tests assert. The arrays are
in `tests/golden` (or in the directory `L2RM_GOLDEN`), whose README explains their keys. `parts.py`
says which function compares which files, and with what tolerance.

In this package, "ours" is what this library computes and "theirs" is what the authors' code did.
"""
