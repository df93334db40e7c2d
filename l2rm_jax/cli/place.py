"""The flags that say where parts of the work are computed."""

from l2rm_jax.cli.mode import Command, Flag
from l2rm_jax.executors import WHOLE, Place, parse_share

PLACE = (
    Flag("executor", "NAME", "local, or ray: its workers compute the parts", default="local"),
    Flag("ray_address", "ADDRESS", "a cluster of Ray, or auto", default="one is started"),
    Flag("workers", "N", "of the Ray that is started", kind=int, default="one a core"),
)

SHARED_PLACE = (
    *PLACE,
    Flag(
        "shards",
        "I/N",
        "process I of N, which divide the work: the same flags, and --out on one file system",
    ),
)


def place_of(command: Command) -> Place:
    """Where a command says that parts are computed, by the flags `PLACE`."""
    given = (command[flag.name] for flag in PLACE)
    return Place(*(value or unset for value, unset in zip(given, Place(), strict=False)))


def shared_place_of(command: Command) -> Place:
    """Where a command says that parts are computed, by the flags `SHARED_PLACE`.

    Raises:
      ConfigError: `--shards` names no share.
    """
    share = parse_share(command["shards"]) if command["shards"] else WHOLE
    return place_of(command)._replace(share=share)
