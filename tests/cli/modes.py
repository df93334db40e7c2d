"""A small table of modes, and a function that parses with it."""

from l2rm_jax.cli.mode import CONFIG, DATA, FIELD, PRETRAINED, Command, Flag, Mode
from l2rm_jax.cli.parse import parse

WORKDIR = Flag("workdir", "DIR", "directory of the run", default="runs/")
MODES = (
    Mode("check", "check the data", "l2rm check --data=D", (CONFIG, FIELD, DATA), print),
    Mode("train", "train", "l2rm --config=f30k", (CONFIG, FIELD, DATA, PRETRAINED, WORKDIR), print),
    Mode(
        "rank",
        "rank many things",
        "l2rm rank --workdir=W",
        (WORKDIR._replace(many=True), Flag("best", "N", "how many", kind=int)),
        print,
    ),
)


def parsed(line: str) -> Command:
    """The command of a line of words with spaces between them."""
    return parse(line.split(), MODES)
