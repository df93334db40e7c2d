"""Benchmarks: one script a question, each with sizes of the user's own and `--json`."""
