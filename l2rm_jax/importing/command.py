"""The modes that import the user's own data and write encoders: flags, and what runs them."""

from pathlib import Path

from l2rm_jax.command_line.mistakes import missing_flag_error
from l2rm_jax.command_line.mode import Command, Flag, Mode
from l2rm_jax.command_line.place import PLACE, place_of
from l2rm_jax.errors import ConfigError
from l2rm_jax.executors import Place, parse_share


def _import(command: Command) -> None:
    from l2rm_jax.importing.request import Request

    if not command["out"]:
        raise missing_flag_error("out", command.mode)
    place, own = place_of(command), {"shards", *(flag.name for flag in PLACE)}
    flags = {name: value for name, value in command.flags.items() if name not in own}
    columns = tuple(flags.pop("caption_column", ()))
    request = Request(**{**flags, "out": Path(flags["out"])}, caption_columns=columns)
    request.check()  # before libraries are loaded
    place.check()
    from l2rm_jax.importing.importer import describe_import, import_data, load_encoder

    if command["shards"]:
        from l2rm_jax.importing.by_file import describe_shards, describe_unfinished, import_by_file

        share = parse_share(command["shards"])
        with place.open() as executor:
            record = import_by_file(request, load_encoder, executor, share)
        done = describe_shards(record, request.out) if record else describe_unfinished(request)
        print(done)
        return
    if place != Place():
        raise ConfigError(f"--executor={place.executor}: expected --shards too")
    print(describe_import(import_data(request), request.out))


_FLAGS = (
    Flag(
        "source",
        "PATH",
        "a .csv, .tsv, .txt, .json, .parquet or .tar file, or a directory, also of shards",
    ),
    Flag(
        "pictures",
        "DIR",
        "directory that names of pictures start from",
        default="that of the source",
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
        "what turns pictures and captions into vectors (pixels:DIR keeps pixels)",
    ),
    Flag("tokens", "patches", "take the states of patches and tokens instead of one vector each"),
    Flag("image_vectors", "FILE.npy", "instead of an encoder: one row an image"),
    Flag("caption_vectors", "FILE.npy", "with --image_vectors: one row a caption"),
    Flag(
        "split",
        "SHARES",
        "shares of train, dev and test",
        default="the source's own split, else 0.8,0.1,0.1",
    ),
    Flag("seed", "N", "seed of the split", kind=int, default="0"),
    Flag("max_rejected", "SHARE", "rows that may be rejected", kind=float, default="0.01"),
    Flag("out", "DIR", "the new directory, which every mode reads as --data=DIR"),
    Flag(
        "shards",
        "I/N",
        "a shard of vectors for each file of the source; with I/N, process I of N makes its own",
        bare="1/1",
    ),
    *PLACE,
)

IMPORT = Mode(
    "import",
    "table, photographs -> data",
    "l2rm import --source=pairs.csv --encoder=transformers:DIR --out=D",
    _FLAGS,
    _import,
    "{out}.partial keeps all but the last 256 pictures or 2048 captions",
)


def _keep(command: Command) -> None:
    from l2rm_jax.importing.kept import describe_kept, keep_samples

    for name in ("data", "audit", "out"):
        if not command[name]:
            raise missing_flag_error(name, command.mode)
    out = Path(command["out"])
    with place_of(command).open() as executor:
        print(describe_kept(keep_samples(command["data"], command["audit"], out, executor), out))


KEEP = Mode(
    "keep",
    "archives without doubted pairs",
    "l2rm keep --data=D --audit=A --out=K",
    (
        Flag("data", "DIR", "shards, or a directory, that l2rm import made of .tar files"),
        Flag("audit", "DIR", "what l2rm audit wrote of them"),
        Flag("out", "DIR", "the new directory of .tar files"),
        *PLACE,
    ),
    _keep,
    "{out}.partial keeps the finished archives",
)


def _weights(command: Command) -> None:
    from l2rm_jax.data.encoders.packaged import write_packaged

    if not command["out"]:
        raise missing_flag_error("out", command.mode)
    print(write_packaged(Path(command["out"])))


WEIGHTS = Mode(
    "weights",
    "encoders without a download",
    "l2rm weights --out=encoders",
    (Flag("out", "DIR", "the new directory, of encoders from the packages of the extra weights"),),
    _weights,
)
