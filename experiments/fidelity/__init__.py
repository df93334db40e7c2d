"""Our code on the inputs of the authors' code: `python -m experiments.fidelity` prints the table.

The arrays that their code computed are in `tests/golden` (or the directory in `L2RM_GOLDEN`), their
keys in its README. `parts.py` says which function compares which files, and how close; the tests
assert what the table shows.
"""
