"""Suites of the benchmark, one file each: data, sizes, methods, heads, protocols, rates, seeds."""

__all__: list[str] = []
