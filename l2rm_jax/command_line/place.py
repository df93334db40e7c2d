"""The flags that say where parts of the work are computed."""

from l2rm_jax.command_line.mode import Command, Flag
from l2rm_jax.executors import Place

PLACE = (
    Flag("executor", "NAME", "local, or ray: its workers compute the parts", default="local"),
    Flag("ray_address", "ADDRESS", "a cluster of Ray, or auto", default="one is started"),
    Flag("workers", "N", "of the Ray that is started", kind=int, default="one a core"),
)


def place_of(command: Command) -> Place:
    """Where a command says that parts are computed."""
    given = (command[flag.name] for flag in PLACE)
    return Place(*(value or unset for value, unset in zip(given, Place(), strict=True)))
