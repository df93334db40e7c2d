"""`python -m l2rm_jax` is `python -m l2rm_jax.main`."""

from l2rm_jax.main import run_command

run_command()
