"""Convert videos with captions to the directory that `l2rm` reads; a frame becomes a region.

python -m experiments.convert_video dual_encoding msrvtt10k --max_frames=32 --out=DIR
python -m experiments.convert_video experts MSVD --features=EXPERT --out=DIR
l2rm --config=video --data=DIR --config.mismatch.rate=0.4

`dual_encoding` (Dong et al., 2019) has these files, in one collection for all sets or in a
collection (directory) for each set. The name of a set ends in train, val or test.

* `FeatureData/{features}/feature.bin`: float32 rows, one for each frame or video.
* `FeatureData/{features}/shape.txt`: "rows dimensions".
* `FeatureData/{features}/id.txt`: name of each row, a video (`video7`) or a frame (`video7_12`).
* `TextData/{set}.caption.txt`: lines such as "video7#0 a caption".
* `ImageSets/{set}.txt`: the videos in order (optional).

`experts` (Liu et al., 2019, collaborative experts) has these files, possibly in
`structured-symlinks/`. All except the lists are a `.pkl` or `.pickle`, or a `.npz` with one array
for each video. A pickle that names anything but arrays and plain containers is refused, and nothing
in it is imported or run.

* `{train,val,test}_list.txt`: the videos of a split.
* `raw-captions`: captions of each video, as strings or lists of words.
* `{features}`: features of each video from one expert, [dimensions] or [frames, dimensions].
* `dict_youtube_mapping` (MSVD only): the name that each video has in `raw-captions`.
"""

import collections
import glob
import pickle
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from experiments.script import new_parser, start
from l2rm_jax.data.captions import check_length
from l2rm_jax.errors import ConfigError, DataError, first_line
from l2rm_jax.jobs.files import new_directory

SPLITS = {"train": "train", "dev": "val", "test": "test"}  # our name: name in the files
MOST_FRAMES = {"dual_encoding": 64, "experts": 1}
_MAX_EXAMPLES = 3  # in an error message


class Videos(NamedTuple):
    """Videos of a split; the frames of video k are `array[rows[k]]`."""

    names: Sequence[str]
    array: Float32[np.ndarray, "rows dimensions"]
    rows: Sequence[Int[np.ndarray, " frames"]]
    captions: Mapping[str, Sequence[str]]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("layout", choices=READERS)
    parser.add_argument("source", type=Path, help="directory of the videos' files")
    parser.add_argument("--out", required=True, type=Path, help="the new directory")
    parser.add_argument(
        "--features", default="", help="directory in FeatureData, or the expert's file, no suffix"
    )
    parser.add_argument(
        "--max_frames", type=int, help="frames kept of a video, evenly spaced [64; experts: 1]"
    )
    flags = parser.parse_args()
    most = MOST_FRAMES[flags.layout] if flags.max_frames is None else flags.max_frames
    convert(flags.layout, flags.source, flags.out, flags.features, most)


def convert(layout: str, source: Path, out: Path, features: str, max_frames: int) -> None:
    """Write the features, counts of frames, captions and names of all splits.

    Raises:
      ConfigError: a flag does not fit the files, or `out` exists.
      DataError: a file is missing or invalid, or a video of one file is missing from another.
    """
    if max_frames < 1:
        raise ConfigError(f"--max_frames: {max_frames}, expected at least 1")
    if not source.is_dir():
        raise DataError(f"{source}: no such directory; expected the directory of the videos' files")
    with new_directory(out) as directory:
        for split, name in SPLITS.items():
            write_split(directory / split, READERS[layout](source, name, features), max_frames)


def write_split(stem: Path, videos: Videos, max_frames: int) -> None:
    """Write the files of a split; every video has room for `max_frames` frames."""
    shape = len(videos.names), max_frames, videos.array.shape[1]
    stored = np.lib.format.open_memmap(f"{stem}_ims.npy", "w+", np.float32, shape)
    counts = np.array([min(len(frames), max_frames) for frames in videos.rows])
    for row, frames, count in zip(stored, videos.rows, counts, strict=True):
        row[:count] = videos.array[
            frames[np.linspace(0, len(frames) - 1, count).round().astype(int)]
        ]
    stored.flush()
    np.save(f"{stem}_regions.npy", counts)
    captions = [videos.captions[name] for name in videos.names]
    np.save(f"{stem}_pairs.npy", np.repeat(np.arange(len(captions)), [*map(len, captions)]))
    lines = [caption.replace("\n", " ") for own in captions for caption in own]
    for kind, texts in (("caps", lines), ("ids", videos.names)):
        Path(f"{stem}_{kind}.txt").write_bytes("".join(f"{text}\n" for text in texts).encode())
    print(f"{stem.name}: {len(captions)} videos, {len(lines)} captions")


def read_dual_encoding(path: Path, split: str, features: str) -> Videos:
    text = _find_caption_file(path, split)
    collection, name = text.parents[1], text.name.removesuffix(".caption.txt")
    captions = _read_captions_by_video(text)
    video_list = collection / "ImageSets" / f"{name}.txt"
    videos = _read_video_list(video_list) if video_list.is_file() else list(captions)
    _check_entries(videos, captions, video_list, text)
    _check_entries(captions, videos, text, video_list)
    directory = _find_feature_directory(collection / "FeatureData", features)
    array, names = _open_feature_rows(directory)
    frames = _frames_by_video(names, videos)
    _check_entries(videos, frames, text, directory / "id.txt")
    return Videos(videos, array, [frames[video] for video in videos], captions)


def read_experts(path: Path, split: str, features: str) -> Videos:
    if not features:
        raise ConfigError("--features: empty; expected the file of an expert, without its suffix")
    links = path / "structured-symlinks"
    directory = links if links.is_dir() else path
    video_list = directory / f"{split}_list.txt"
    videos = _read_video_list(video_list)
    text, stored = _read_mapping(directory, "raw-captions")
    mapping = {}
    if any((directory / f"dict_youtube_mapping{suffix}").is_file() for suffix in _LOADERS):
        mapping = _read_mapping(directory, "dict_youtube_mapping")[1]
    caption_key = {video: str(mapping.get(video, video)) for video in videos}
    _check_entries(caption_key.values(), stored, video_list, text)
    captions = {video: _parse_captions(stored[caption_key[video]], text, video) for video in videos}
    file, expert = _read_mapping(directory, features)
    _check_entries(videos, expert, video_list, file)
    arrays = [_parse_frames(expert[video], file, video) for video in videos]
    dimensions = {array.shape[1] for array in arrays}
    if len(dimensions) > 1:
        raise DataError(f"{file}: found features of {sorted(dimensions)} dimensions, expected one")
    ends = np.cumsum([len(array) for array in arrays])
    rows = [np.arange(end - len(array), end) for end, array in zip(ends, arrays, strict=True)]
    return Videos(videos, np.concatenate(arrays), rows, captions)


READERS = {"dual_encoding": read_dual_encoding, "experts": read_experts}


# Parts of the layout `dual_encoding`


def _find_caption_file(path: Path, name: str) -> Path:
    name = glob.escape(name)
    patterns = f"TextData/*{name}.caption.txt", f"*/TextData/*{name}.caption.txt"
    files = [file for pattern in patterns for file in sorted(path.glob(pattern))]
    if len(files) != 1:
        raise DataError(
            f"{path}: found {_examples(files) or 'none'}, expected one file {patterns[0]}, here or "
            "in a directory below"
        )
    return files[0]


def _read_captions_by_video(path: Path) -> dict[str, list[str]]:
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(_read_lines(path), 1):
        key, _, caption = line.partition(" ")
        video, mark, _ = key.partition("#")
        if not mark or not video or not caption.strip():
            raise DataError(
                f"{path}:{number}: found {line[:100]!r}, expected 'video#number caption'"
            )
        check_length(f"{path}:{number}", caption)
        video = video.removesuffix(".mp4").removesuffix(".jpg")
        captions.setdefault(video, []).append(caption.strip())
    return captions


def _find_feature_directory(path: Path, features: str) -> Path:
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if features in names or (not features and len(names) == 1):
        return path / (features or names[0])
    expected = ", ".join(names) or "none there"
    raise ConfigError(f"--features: found {features!r}, expected one of {path}: {expected}")


def _open_feature_rows(path: Path) -> tuple[Float32[np.ndarray, "rows dimensions"], list[str]]:
    """Memory-map the rows of a `feature.bin` and read their names."""
    shape, names, binary = path / "shape.txt", path / "id.txt", path / "feature.bin"
    sizes = " ".join(_read_lines(shape)).split()
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise DataError(f"{shape}: found {' '.join(sizes)!r}, expected 'rows dimensions'")
    rows, dimensions = map(int, sizes)
    ids = " ".join(_read_lines(names)).split()
    if len(ids) != rows or len(set(ids)) != rows:
        raise DataError(
            f"{names}: found {len(ids)} names, {len(set(ids))} different ones, expected {rows} as "
            f"in {shape.name}"
        )
    expected = rows * dimensions * 4
    size = binary.stat().st_size if binary.is_file() else 0
    if size != expected:
        raise DataError(
            f"{binary}: found {size} bytes, expected {expected} for float32 [{rows}, {dimensions}]"
        )
    return np.asarray(np.memmap(binary, "<f4", "r", shape=(rows, dimensions))), ids


def _frames_by_video(names: Sequence[str], videos: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows of each video, in the order of their frames.

    A row is named after its video, or after its video and the number of the frame.
    """
    known, frames = set(videos), {}
    for row, name in enumerate(names):
        video, _, frame = name.rpartition("_")
        if name in known:
            frames.setdefault(name, []).append((-1, row))
        elif video in known and frame.isdecimal():
            frames.setdefault(video, []).append((int(frame), row))
    return {video: np.array([row for _, row in sorted(rows)]) for video, rows in frames.items()}


# Parts of the layout `experts`


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        return dict(file)


def _read_pickle(path: Path) -> Any:
    """Read a pickle; strings of Python 2 are read as latin1, which its NumPy arrays need."""
    with path.open("rb") as file:
        return _Unpickler(file, encoding="latin1").load()


# Functions that NumPy's pickles name: for an array, for a scalar, for an array in protocol 5.
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_SCALAR = np.float64(0).__reduce__()[0]
_FROM_BUFFER = np.zeros(0).__reduce_ex__(5)[0]


def _latin1(text: str, encoding: str) -> bytes:
    """Encode latin1 text, as pickled Python 2 byte strings need; refuse every other codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as {encoding}, expected latin1")
    return text.encode(encoding)


# The only globals that a pickle may name. NumPy 2 moved its own from numpy.core to numpy._core.
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): collections.OrderedDict,
    **{
        (f"numpy.{core}.{name}", function.__name__): function
        for core in ("core", "_core")
        for name, function in (
            ("multiarray", _RECONSTRUCT),
            ("multiarray", _SCALAR),
            ("numeric", _FROM_BUFFER),
        )
    },
}


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler: the one in C allocates a memo of any size that a file asks for."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is never loaded; convert the file to .npz"
            ) from None


_LOADERS = {".npz": _read_npz, ".pkl": _read_pickle, ".pickle": _read_pickle}


def _read_mapping(directory: Path, name: str) -> tuple[Path, Mapping[str, Any]]:
    """Read a file that maps each video to its data; return the file's path and the mapping."""
    files = [directory / f"{name}{ending}" for ending in _LOADERS]
    present = [file for file in files if file.is_file()]
    if len(present) != 1:
        raise DataError(
            f"{directory / name}: found {_examples(present) or 'none'}, expected one file that "
            f"ends in {', '.join(_LOADERS)}"
        )
    [path] = present
    try:
        content = _LOADERS[path.suffix](path)
    except Exception as error:  # a damaged file can raise anything
        raise DataError(
            f"{path}: cannot be read ({first_line(error)}), expected arrays, numbers, strings and "
            "plain containers"
        ) from error
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: found {type(content).__name__}, expected a dict by video")
    return path, content


def _parse_captions(stored: Any, path: Path, video: str) -> list[str]:
    """Check the captions of a video and return them as strings."""
    lines = stored.tolist() if isinstance(stored, np.ndarray) else stored
    kinds = (str, list, tuple)
    if not isinstance(lines, list | tuple) or not all(isinstance(line, kinds) for line in lines):
        raise DataError(
            f"{path}: {video}: found {type(stored).__name__}, expected a list of captions"
        )
    captions = [line if isinstance(line, str) else " ".join(map(str, line)) for line in lines]
    captions = [caption.strip() for caption in captions]
    if not captions or not all(captions):
        raise DataError(
            f"{path}: {video}: found {len(captions)} captions, expected one or more, none empty"
        )
    for caption in captions:
        check_length(f"{path}: {video}", caption)
    return captions


def _parse_frames(stored: Any, path: Path, video: str) -> Float32[np.ndarray, "frames dimensions"]:
    """Check the features of a video and return them as float32, one row for each frame."""
    try:
        array = np.asarray(stored)
    except ValueError as error:
        raise DataError(
            f"{path}: {video}: not an array ({error}), expected numbers [dimensions] or [frames, "
            "dimensions]"
        ) from error
    if array.ndim not in (1, 2) or 0 in array.shape or array.dtype.kind != "f":
        raise DataError(
            f"{path}: {video}: found {array.dtype} {list(array.shape)}, expected numbers "
            "[dimensions] or [frames, dimensions]"
        )
    with np.errstate(over="ignore"):  # `l2rm check` reports infinities
        return np.atleast_2d(array).astype(np.float32)


# Parts of both layouts


def _read_lines(path: Path) -> list[str]:
    """Read the lines of a text file, stripped, without the empty ones."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        # Not `splitlines`, which also splits at characters that captions may contain, such as
        # U+2028. Stripping below removes the carriage returns of Windows.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{number}: byte 0x{error.object[error.start]:02x} is not UTF-8, expected text "
            "in UTF-8"
        ) from error
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: the file is empty, expected at least one line")
    return [line.strip() for line in lines if line.strip()]


def _read_video_list(path: Path) -> list[str]:
    videos = _read_lines(path)
    repeated = [video for video, times in Counter(videos).items() if times > 1]
    if repeated:
        raise DataError(f"{path}: {_examples(repeated)}: found more than once, expected once")
    return videos


def _check_entries(
    videos: Iterable[str], entries: Container[str], source: Path, file: Path
) -> None:
    """Raise `DataError` if `file`, with these entries, lacks one of the videos of `source`."""
    missing = [video for video in videos if video not in entries]
    if missing:
        raise DataError(
            f"{file}: found no entry for {len(missing)} videos of {source.name}: "
            f"{_examples(missing)}"
        )


def _examples(items: Sequence[object]) -> str:
    """The first few items, and how many more there are."""
    more = [f"{len(items) - _MAX_EXAMPLES} more"] if len(items) > _MAX_EXAMPLES else []
    return ", ".join([*map(str, items[:_MAX_EXAMPLES]), *more])


if __name__ == "__main__":
    start(main, prepare=False)
