"""Compare our code with arrays that the authors' code computed from the same inputs.

The arrays are in `tests/golden` (or in the directory `L2RM_GOLDEN`), whose README explains their
keys. `parts.py` says which function compares which files, and with what tolerance. In this package,
"ours" is the output of this library and "theirs" the output of the authors' code.
"""
