"""PyTorch checkpoints published by the authors of L2RM and related methods.

`checkpoint` reads a file without executing anything in it, and `conversion` converts its weights
to Flax parameters. May import `run` and all to its right.
"""
