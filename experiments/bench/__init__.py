"""Benchmarks: one script per question, with flags for the sizes and `--json` for the results."""
