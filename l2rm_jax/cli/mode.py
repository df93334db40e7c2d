"""The types of a mode, a flag and a parsed command."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from l2rm_jax.jobs import SINGLE, Place, parse_share


class Flag(NamedTuple):
    """A flag of a mode, `--name=value`.

    Attributes:
      name: the flag without its dashes.
      value: name of the value for the help, in capitals: `DIR`; "" for a flag that is on or off.
      meaning: text for the help; a clause without a full stop.
      kind: type of the value, `str`, `int`, `float` or `bool`.
      many: whether the flag may be repeated; its value is then a list.
      default: default for the help, in words if need be; "" if there is none.
    """

    name: str
    value: str
    meaning: str
    kind: type = str
    many: bool = False
    default: str = ""

    @property
    def is_path(self) -> bool:
        """Whether the value is a path, which may begin with `~`."""
        return any(word in self.value for word in ("DIR", "FILE", "PATH"))


# Flags that the parser itself understands, where a mode has them.
CONFIG = Flag(
    "config",
    "NAME",
    "a config: f30k, f30k:rcl, or the path of a file. Without it, a run in --workdir keeps its own",
    default="the built-in data set",
)
FIELD = Flag("config.FIELD", "VALUE", "any field of the config; l2rm --help lists them")
DATA = Flag(
    "data",
    "DIR[:SPLIT]",
    "directory of the data (data.path), and the split to test on (data.test_split)",
)
SOURCE = Flag(
    "source",
    "SOURCE",
    "data or a run, as --data or --workdir name them; needs no --source= after the mode",
)
PRETRAINED = Flag(
    "pretrained",
    "DIR",
    "directory or Hub name of a pretrained encoder (model.pretrained, model.text_encoder, ...)",
)
# Flags that choose the executor of the work.
PLACE = (
    Flag("executor", "NAME", "local, or ray: its workers compute the parts", default="local"),
    Flag("ray_address", "ADDRESS", "a cluster of Ray, or auto", default="one is started"),
    Flag("workers", "N", "number of Ray workers to start", kind=int, default="one per core"),
)
SHARED_PLACE = (
    *PLACE,
    Flag(
        "share",
        "I/N",
        "process I of N that divide the work: same flags, --out on a shared file system",
    ),
)


class Mode(NamedTuple):
    """A mode of the command line.

    Attributes:
      name: the first word of the command, `evaluate`.
      purpose: description for the help, in a few words.
      example: a whole command.
      flags: all flags of the mode.
      run: function that does the work of a parsed command.
      kept: work that Ctrl-C leaves for the same command to continue, with `{out}` for the flag; ""
        if the command starts again.
    """

    name: str
    purpose: str
    example: str
    flags: tuple[Flag, ...]
    run: "Callable[[Command], None]"
    kept: str = ""

    def flag(self, name: str) -> Flag | None:
        """The flag of this name; None if the mode has none."""
        return next((flag for flag in self.flags if flag.name == name), None)

    def takes(self, name: str) -> bool:
        """Whether the mode takes the flag or field `--name`."""
        return self.flag(FIELD.name if name.startswith("config.") else name) is not None


def modes_with_source(modes: Sequence[Mode]) -> list[str]:
    """Return the names of the modes that take a positional SOURCE."""
    return [mode.name for mode in modes if mode.flag("source") is not None]


@dataclass(frozen=True)
class Command:
    """A parsed command line.

    Attributes:
      mode: the mode to run.
      flags: the value of each flag that was given, except `--config` and the fields.
      config: the config, with `changes`; None if the mode takes none.
      changes: the fields that the command line sets, by dotted key, with their values.
      config_name: value of `--config`; None without the flag.
      given: all flags and fields as they were written.
      is_built_in: whether nothing names a config, a run or data, so that `config` is the built-in
        data set.
    """

    mode: Mode
    flags: Mapping[str, Any]
    config: ConfigDict | None
    changes: Mapping[str, Any]
    config_name: str | None
    given: tuple[tuple[str, str | None], ...]
    is_built_in: bool = False

    def __getitem__(self, name: str) -> Any:
        """Value of a flag; if it was not given, None, or [] for one that may be repeated."""
        flag = self.mode.flag(name)
        return self.flags.get(name, [] if flag and flag.many else None)

    @property
    def place(self) -> Place:
        """Choice of an executor by the flags `PLACE` or `SHARED_PLACE`.

        Raises:
          ConfigError: `--share` is not I/N.
        """
        given = (self[flag.name] for flag in PLACE)
        place = Place(*(value or unset for value, unset in zip(given, Place(), strict=False)))
        return place._replace(share=parse_share(self["share"]) if self["share"] else SINGLE)
