"""The modes `search` and `embed`: their flags, and the functions that run them."""

import logging

from l2rm_jax.cli.mistakes import refuse_beside, require_flags
from l2rm_jax.cli.mode import Command, Flag, Mode

_log = logging.getLogger(__name__)
ZERO_SHOT = Flag(
    "zero_shot",
    "",
    "test the vectors of --data as they are, by their cosines, without a run",
    kind=bool,
)
PROPOSER = Flag(
    "proposer",
    "DIR",
    "a run whose similarity is one product (vse); the runs of --workdir then score only the "
    "candidates that it proposes",
)
CANDIDATES = Flag(
    "candidates",
    "N",
    "candidates per image and caption; requires --proposer; repeatable; 0 scores all pairs",
    kind=int,
    many=True,
)
_USED = Flag("workdir", "DIR", "the run to use; repeat the flag to average several", many=True)


def _search(command: Command) -> None:
    from l2rm_jax.retriever.commands import search

    if not command["zero_shot"]:
        require_flags(command, "workdir")
    require_flags(command, "gallery", "query")
    refuse_beside(command, "zero_shot", "workdir", "proposer")
    if command["candidates"] is not None:
        require_flags(command, "proposer")
    names = ("workdir", "gallery", "query", "top_k", "proposer", "candidates", "html")
    values = {name: command[name] for name in names if command[name] is not None}
    hits = search(values.pop("workdir", None), values.pop("gallery"), values.pop("query"), **values)
    print(hits.to_json() if command["json"] else hits)
    if command["html"]:
        _log.info("the page: %s", command["html"])
    elif not command["json"]:
        _log.info("look at them: add --html=page.html")


def _embed(command: Command) -> None:
    from l2rm_jax.retriever.commands import embed

    require_flags(command, "workdir", "data", "out")
    print(embed(command["workdir"], command["data"], command["out"]))


SEARCH = Mode(
    "search",
    "find images by captions",
    'l2rm search --workdir=W --gallery=D:test --query="a red ball"',
    (
        _USED,
        Flag("gallery", "DIR[:SPLIT]", "the images to search", default="SPLIT test"),
        ZERO_SHOT._replace(meaning="search the vectors of --gallery as they are, with no run"),
        Flag("query", "CAPTION", "a caption to search; repeat the flag for more", many=True),
        Flag("top_k", "N", "number of images to find per query", kind=int, default="10"),
        Flag("html", "FILE", "also write a page with the pictures, to open in a browser"),
        Flag("json", "", "print JSON instead of a table", kind=bool),
        PROPOSER,
        CANDIDATES._replace(
            meaning="number of candidates per query; requires --proposer",
            many=False,
            default="100",
        ),
    ),
    _search,
)
EMBED = Mode(
    "embed",
    "write vectors for other tools",
    "l2rm embed --workdir=W --data=D:test --out=E",
    (
        _USED,
        Flag("data", "DIR[:SPLIT]", "the images and captions to encode", default="SPLIT test"),
        Flag("out", "DIR", "the new directory of images.npy, captions.npy and their ids"),
    ),
    _embed,
)
