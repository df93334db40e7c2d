"""Losses: pure functions of a similarity matrix, nothing else."""
