"""The program `l2rm`, which is `python -m l2rm_jax` too: Ctrl-C is handled before JAX is loaded."""

from l2rm_jax.interrupt import handle_ctrl_c


def run_command() -> None:
    """Run the command line of this process."""
    handle_ctrl_c()
    from l2rm_jax import main

    main.run_command()


if __name__ == "__main__":
    run_command()
