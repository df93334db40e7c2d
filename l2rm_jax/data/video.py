"""Videos with captions, in the two layouts of the field. A frame is a region.

* `dual_encoding` (Dong et al., 2019): `FeatureData/{features}/` with `feature.bin` (float32 rows),
  `shape.txt` ("rows dimensions") and `id.txt` (a name for each row: the video's, or the video's and
  a frame number, `video7_12`), `TextData/{set}.caption.txt` ("video7#0 a caption") and, if there,
  `ImageSets/{set}.txt` (the videos in order). A set's name ends in train, val or test; the sets
  may be collections of their own, side by side.
* `experts` (Liu et al., 2019, collaborative experts): `{train,val,test}_list.txt`, `raw-captions`
  (video -> captions, as strings or lists of words), one file an expert (video -> [dimensions] or
  [frames, dimensions]), and for MSVD `dict_youtube_mapping` (video -> its name in the captions).
  Each is a `.pkl` or `.pickle`, of which nothing is executed, or a `.npz` with an array a video.
  They may lie in `structured-symlinks/`.
"""

import glob
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.data.captions import check_length
from l2rm_jax.data.features import Gathered, RegionFeatures
from l2rm_jax.data.pickles import read_pickle
from l2rm_jax.errors import ConfigError, DataError

_NAMES = {"dev": "val"}  # of the splits, where they differ from ours
_SHOWN = 3


class VideoSplit(NamedTuple):
    """Videos of a split with their captions, any number each.

    Attributes:
      videos: features, a frame a region.
      captions: [pairs] raw text, those of a video in a row.
      caption_video: [pairs] row of the video of each, ascending.
    """

    videos: RegionFeatures
    captions: list[str]
    caption_video: Int[np.ndarray, " pairs"]


def read_dual_encoding(path: str | Path, split: str, features: str, max_frames: int) -> VideoSplit:
    """A split of the `dual_encoding` layout.

    Args:
      path: directory of the collection, or of several.
      split: "train", "dev" or "test"; a longer name of the test set works too.
      features: directory under `FeatureData`; "" where there is only one.
      max_frames: frames kept of a video, evenly spaced.

    Raises:
      ConfigError, DataError: a file is missing or not what it should be, or a video of one file is
        not in another.
    """
    text = _caption_file(_directory(path), _NAMES.get(split, split))
    collection, name = text.parents[1], text.name.removesuffix(".caption.txt")
    captions = _captions_by_video(text)
    listed = collection / "ImageSets" / f"{name}.txt"
    videos = _video_list(listed) if listed.is_file() else list(captions)
    _refuse_missing(videos, captions, listed, text)
    _refuse_missing(captions, videos, text, listed)
    source = _feature_directory(collection / "FeatureData", features)
    array, names = _big_file(source)
    frames = _frames_by_video(names, videos)
    _refuse_missing(videos, frames, text, source / "id.txt")
    rows = [frames[video] for video in videos]
    where = f"{source / 'feature.bin'}, videos of {name}"
    return _split(where, array, rows, max_frames, videos, captions)


def read_experts(path: str | Path, split: str, features: str, max_frames: int) -> VideoSplit:
    """A split of the `experts` layout.

    Args:
      path: directory of the data set.
      split: "train", "dev", "test".
      features: file of the expert below the directory, without its ending.
      max_frames: frames kept of a video, evenly spaced.

    Raises:
      ConfigError, DataError: as `read_dual_encoding`.
    """
    directory = _directory(path)
    if (directory / "structured-symlinks").is_dir():
        directory /= "structured-symlinks"
    if not features:
        raise ConfigError("data.features is empty; expected the file of an expert, without ending")
    listed = directory / f"{_NAMES.get(split, split)}_list.txt"
    videos = _video_list(listed)
    text, stored = _by_video(directory, "raw-captions")
    mapped = {}
    if any((directory / f"dict_youtube_mapping{end}").is_file() for end in _READERS):
        mapped = _by_video(directory, "dict_youtube_mapping")[1]
    of_video = {video: str(mapped.get(video, video)) for video in videos}
    _refuse_missing(of_video.values(), stored, listed, text)
    captions = {video: _sentences(stored[of_video[video]], text, video) for video in videos}
    file, expert = _by_video(directory, features)
    _refuse_missing(videos, expert, listed, file)
    arrays = [_frames_of(expert[video], file, video) for video in videos]
    dimensions = {array.shape[1] for array in arrays}
    if len(dimensions) > 1:
        raise DataError(f"{file}: found features of {sorted(dimensions)} dimensions, expected one")
    ends = np.cumsum([len(array) for array in arrays])
    rows = [np.arange(end - len(array), end) for end, array in zip(ends, arrays, strict=True)]
    where = f"{file}, videos of {listed.name}"
    return _split(where, np.concatenate(arrays), rows, max_frames, videos, captions)


def _split(
    name: str,
    array: Float32[np.ndarray, "rows dimensions"],
    rows: Sequence[Int[np.ndarray, " frames"]],
    max_frames: int,
    videos: Sequence[str],
    captions: Mapping[str, Sequence[str]],
) -> VideoSplit:
    """The videos, `rows` of the array each, all with room for `max_frames`."""
    if max_frames < 1:
        raise ConfigError(f"data.max_frames: {max_frames}, expected at least 1")
    index = np.zeros((len(videos), max_frames), np.int64)
    counts = np.array([min(len(own), max_frames) for own in rows])
    for line, own, count in zip(index, rows, counts, strict=True):
        line[:count] = own[np.linspace(0, len(own) - 1, count).round().astype(int)]
    features = RegionFeatures.from_array(Gathered(array, index), name, counts)
    numbers = [len(captions[video]) for video in videos]
    text = [caption for video in videos for caption in captions[video]]
    return VideoSplit(features, text, np.repeat(np.arange(len(videos)), numbers))


# Dual encoding


def _caption_file(path: Path, name: str) -> Path:
    name = glob.escape(name)
    patterns = f"TextData/*{name}.caption.txt", f"*/TextData/*{name}.caption.txt"
    found = [file for pattern in patterns for file in sorted(path.glob(pattern))]
    if len(found) != 1:
        raise DataError(
            f"{path}: found {_some(found) or 'none'}, expected one file {patterns[0]}, here or "
            "in a directory below"
        )
    return found[0]


def _captions_by_video(path: Path) -> dict[str, list[str]]:
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(_lines(path), 1):
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


def _feature_directory(path: Path, features: str) -> Path:
    found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if features in found or (not features and len(found) == 1):
        return path / (features or found[0])
    raise ConfigError(
        f"data.features is {features!r}, expected one of {path}: {', '.join(found) or 'none there'}"
    )


def _big_file(path: Path) -> tuple[Float32[np.ndarray, "rows dimensions"], list[str]]:
    """The rows of a `feature.bin`, memory-mapped, and their names."""
    shape, names, binary = path / "shape.txt", path / "id.txt", path / "feature.bin"
    found = " ".join(_lines(shape)).split()
    if len(found) != 2 or not all(word.isdecimal() and int(word) for word in found):
        raise DataError(f"{shape}: found {' '.join(found)!r}, expected 'rows dimensions'")
    rows, dimensions = map(int, found)
    ids = " ".join(_lines(names)).split()
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
    """Rows of each video: the one of its own name, or those that add a frame's number to it."""
    known, frames = set(videos), {}
    for row, name in enumerate(names):
        video, _, frame = name.rpartition("_")
        if name in known:
            frames.setdefault(name, []).append((-1, row))
        elif video in known and frame.isdecimal():
            frames.setdefault(video, []).append((int(frame), row))
    return {video: np.array([row for _, row in sorted(own)]) for video, own in frames.items()}


# Experts


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # what is no such archive may end in any of them
        raise DataError(f"{path}: cannot be read as arrays ({error})") from error


_READERS = {".npz": _read_npz, ".pkl": read_pickle, ".pickle": read_pickle}


def _by_video(directory: Path, name: str) -> tuple[Path, Mapping[str, Any]]:
    """A file, whichever of its forms is there, and what it holds of each video."""
    files = [directory / f"{name}{end}" for end in _READERS]
    present = [file for file in files if file.is_file()]
    if len(present) != 1:
        raise DataError(
            f"{directory / name}: found {_some(present) or 'none'}, expected one file that ends in "
            f"{', '.join(_READERS)}"
        )
    [path] = present
    content = _READERS[path.suffix](path)
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: found {type(content).__name__}, expected a dict by video")
    return path, content


def _sentences(stored: Any, path: Path, video: str) -> list[str]:
    lines = stored.tolist() if isinstance(stored, np.ndarray) else stored
    kinds = (str, list, tuple)
    if not isinstance(lines, list | tuple) or not all(isinstance(line, kinds) for line in lines):
        raise DataError(f"{path}: {video}: found {type(stored).__name__}, expected captions")
    captions = [line if isinstance(line, str) else " ".join(map(str, line)) for line in lines]
    captions = [caption.strip() for caption in captions]
    if not captions or not all(captions):
        raise DataError(
            f"{path}: {video}: found {len(captions)} captions, expected some, none empty"
        )
    for caption in captions:
        check_length(f"{path}: {video}", caption)
    return captions


def _frames_of(stored: Any, path: Path, video: str) -> Float32[np.ndarray, "frames dimensions"]:
    try:
        array = np.asarray(stored)
    except ValueError as error:
        raise DataError(f"{path}: {video}: no array of numbers ({error})") from error
    if array.ndim not in (1, 2) or 0 in array.shape or array.dtype.kind != "f":
        raise DataError(
            f"{path}: {video}: found {array.dtype} {list(array.shape)}, expected numbers "
            "[dimensions] or [frames, dimensions]"
        )
    with np.errstate(over="ignore"):  # infinite numbers are refused as they are read
        return np.atleast_2d(array).astype(np.float32)


# Both


def _directory(path: str | Path) -> Path:
    if not path:
        raise ConfigError("data.path is empty; expected the directory of the videos' files")
    if not Path(path).is_dir():
        raise DataError(f"{path}: no such directory; expected that of the videos' files")
    return Path(path)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        # Not `splitlines`: a caption may hold what it takes for an end of line, U+2028 say. The
        # carriage return of Windows goes as the lines are stripped.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8") from error
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: the file is empty")
    return [line.strip() for line in lines if line.strip()]


def _video_list(path: Path) -> list[str]:
    videos = _lines(path)
    repeated = [video for video, times in Counter(videos).items() if times > 1]
    if repeated:
        raise DataError(f"{path}: {_some(repeated)}: found more than once, expected once")
    return videos


def _refuse_missing(asked: Any, found: Any, source: Path, target: Path) -> None:
    missing = [video for video in asked if video not in found]
    if missing:
        raise DataError(
            f"{target}: found nothing of {len(missing)} videos of {source.name}: {_some(missing)}"
        )


def _some(items: Sequence[object]) -> str:
    more = [f"{len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return ", ".join([*map(str, items[:_SHOWN]), *more])
