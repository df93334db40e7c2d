"""The flags that say where parts of the work are computed."""

from l2rm_jax.cli.mode import Command, Flag
from l2rm_jax.executors import SINGLE, Place, Share, parse_share

PLACE = (
    Flag("executor", "NAME", "local, or ray: its workers compute the parts", default="local"),
    Flag("ray_address", "ADDRESS", "a cluster of Ray, or auto", default="one is started"),
    Flag("workers", "N", "number of Ray workers to start", kind=int, default="one per core"),
)

SHARE = Flag(
    "share",
    "I/N",
    "process I of N that divide the work: same flags, --out on a shared file system",
)
SHARED_PLACE = (*PLACE, SHARE)


def place_of(command: Command) -> Place:
    """Where a command says that parts are computed, by the flags `PLACE`."""
    given = (command[flag.name] for flag in PLACE)
    return Place(*(value or unset for value, unset in zip(given, Place(), strict=False)))


def shared_place_of(command: Command) -> Place:
    """Where a command says that parts are computed, by the flags `SHARED_PLACE`.

    Raises:
      ConfigError: `--share` is not I/N.
    """
    return place_of(command)._replace(share=share_of(command))


def share_of(command: Command) -> Share:
    """Share of the work that `--share` gives to this process.

    Raises:
      ConfigError: it is not I/N.
    """
    return parse_share(command["share"]) if command["share"] else SINGLE
