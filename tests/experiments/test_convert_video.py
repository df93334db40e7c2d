"""Videos of either release are converted to a directory that the library reads."""

import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from experiments import convert_video
from l2rm_jax.check import check
from l2rm_jax.config import default
from l2rm_jax.data.loading import load_data
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.evaluation.recall import recalls
from tests.experiments.finished_runs import command

DIMENSIONS, MAX_FRAMES = 5, 4
RNG = np.random.default_rng(0)
# Frames and captions of each video; the longest has more frames than are kept.
VIDEOS = {
    "train": {"vid_a": (3, 2), "vid_b": (7, 4), "vid_c": (1, 1), "vid_d_1": (4, 3)},
    "val": {"vid_e": (2, 1), "vid_f": (5, 3)},
    "test": {"vid_g": (4, 2), "vid_h": (2, 5), "vid_i": (1, 1)},
}
FRAMES = {
    video: RNG.normal(size=(frames, DIMENSIONS)).astype(np.float32)
    for videos in VIDEOS.values()
    for video, (frames, _) in videos.items()
}


def captions_of(split: str) -> dict[str, list[str]]:
    return {
        video: [f"caption {k} of {video}" for k in range(count)]
        for video, (_, count) in VIDEOS[split].items()
    }


def write_dual_encoding(path: Path, apart: bool = False) -> Path:
    """Write one collection, or with `apart` one collection for each set."""
    for split, videos in VIDEOS.items():
        home = path / (f"msvd{split}" if apart else "")
        feature = home / "FeatureData" / "resnet"
        for directory in (feature, home / "TextData", home / "ImageSets"):
            directory.mkdir(parents=True, exist_ok=True)
        stored = videos if apart else FRAMES
        rows = [(f"{video}_{n}", row) for video in stored for n, row in enumerate(FRAMES[video])]
        rows = [rows[place] for place in RNG.permutation(len(rows))]
        np.concatenate([row for _, row in rows]).tofile(feature / "feature.bin")
        (feature / "shape.txt").write_text(f"{len(rows)} {DIMENSIONS}\n")
        (feature / "id.txt").write_text(" ".join(name for name, _ in rows))
        # Captions of several videos take turns.
        lines = [
            (k, f"{video}#enc#{k} {caption}")
            for video, captions in captions_of(split).items()
            for k, caption in enumerate(captions)
        ]
        text = "\n".join(line for _, line in sorted(lines, key=lambda pair: pair[0]))
        (home / "TextData" / f"msvd{split}.caption.txt").write_text(text + "\n")
        (home / "ImageSets" / f"msvd{split}.txt").write_text("\n".join(videos) + "\n")
    return path


def write_experts(path: Path, form: str = "pkl") -> Path:
    home = path / "structured-symlinks"
    (home / "aggregated_imagenet").mkdir(parents=True)
    for split, videos in VIDEOS.items():
        (home / f"{split}_list.txt").write_text("\n".join(videos) + "\n")
    captions = {
        f"name of {video}": [caption.split() for caption in own]
        for split in VIDEOS
        for video, own in captions_of(split).items()
    }
    mapping = {video: f"name of {video}" for video in FRAMES}
    if form == "npz":
        captions = {
            name: np.array([" ".join(line) for line in own]) for name, own in captions.items()
        }
    contents = {
        "raw-captions": captions,
        "dict_youtube_mapping": mapping,
        "aggregated_imagenet/resnet": FRAMES,
    }
    for name, content in contents.items():
        if form == "npz":
            np.savez(home / name, **content)
        else:
            (home / f"{name}.{form}").write_bytes(pickle.dumps(content, protocol=2))
    return path


SAMPLED = {"vid_b": [0, 2, 4, 6], "vid_f": [0, 1, 3, 4]}  # evenly, of 7 and of 5 frames
EXPERT = "aggregated_imagenet/resnet"

WRITERS = {
    "dual_encoding": write_dual_encoding,
    "dual_encoding, apart": lambda path: write_dual_encoding(path, apart=True),
    "experts": write_experts,
    "experts, pickle": lambda path: write_experts(path, "pickle"),
    "experts, npz": lambda path: write_experts(path, "npz"),
}


def convert(source: Path, out: Path, layout: str, features: str | None = None) -> None:
    if features is None:
        features = EXPERT if layout == "experts" else ""
    convert_video.convert(layout, source, out, features, MAX_FRAMES)


def config_of(path: Path):
    config = default()
    config.data.name, config.data.path, config.data.min_count = "msvd", str(path), 1
    config.mismatch.rate, config.train.batch_size = 0.5, 4
    return config


@pytest.mark.parametrize("kind", WRITERS)
def test_a_release_is_converted(tmp_path, kind):
    out = tmp_path / "out"
    convert(WRITERS[kind](tmp_path / "source"), out, kind.split(",")[0])
    config = config_of(out)
    data = load_data(config.data, config.mismatch, workdir=None)
    for split, videos in zip(data.splits, VIDEOS.values(), strict=True):
        counts = [captions for _, captions in videos.values()]
        np.testing.assert_array_equal(split.caption_image, np.repeat(range(len(videos)), counts))
        expected = captions_of({"dev": "val"}.get(split.split, split.split))
        assert split.captions == [caption for own in expected.values() for caption in own]
        assert split.pairs.ids == list(videos)
        everyone = np.arange(len(videos))
        frames = split.images.region_counts(everyone)
        assert frames.tolist() == [min(n, MAX_FRAMES) for n, _ in videos.values()]
        for rows, count, video in zip(split.images.rows(everyone), frames, videos, strict=True):
            np.testing.assert_array_equal(
                rows[:count], FRAMES[video][SAMPLED.get(video, slice(None))]
            )
            assert not rows[count:].any()
    assert data.train.images.shape == (4, MAX_FRAMES, DIMENSIONS)
    # Under the protocol of images, all captions of a video move together.
    stored = [set(data.train.stored_image[data.train.caption_image == video]) for video in range(4)]
    assert all(len(images) == 1 for images in stored)
    row = recalls(np.eye(3, dtype=np.float32)[data.test.caption_image].T, [2, 5, 1])
    assert row["rsum"] == 600 and row["t2i_median"] == 1
    assert "4 images of 1 to 4 regions x 5 features, 10 captions" in check(config)


def test_the_command(tmp_path, monkeypatch, capsys):
    source, out = write_experts(tmp_path / "source"), tmp_path / "out"
    means = {video: frames.mean(0) for video, frames in FRAMES.items()}
    (source / "structured-symlinks" / "means.pickle").write_bytes(pickle.dumps(means))
    arguments = ["experts", source, "--features=means", f"--out={out}"]
    command(monkeypatch, convert_video, *arguments)
    assert "train: 4 videos, 10 captions" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(out / "train_ims.npy")[1], means["vid_b"][None])
    with pytest.raises(SystemExit, match="out"):
        command(monkeypatch, convert_video, *arguments)  # nothing is overwritten


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_a_newline_ends_a_caption(tmp_path, end):
    source = write_dual_encoding(tmp_path / "source")
    captions = ["a\u2028dog", "a\x85cat runs", "a\x0bman", "two\x1cmen", "a \rbird"]
    lines = [f"vid_{'ef'[k % 2]}#{k} {caption}" for k, caption in enumerate(captions)]
    text = end.join([*lines, ""])
    (source / "TextData/msvdval.caption.txt").write_bytes(text.encode())
    convert(source, tmp_path / "out", "dual_encoding")
    config = config_of(tmp_path / "out")
    dev = load_data(config.data, config.mismatch, workdir=None).dev
    assert dev.captions == [*captions[::2], *captions[1::2]]


# A file, its new content (or entries of its pickle, or a function), and a part of the message.
FAULTS = [
    ("feature.bin", bytes(576), "feature.bin: found 576 bytes, expected 580"),
    ("shape.txt", "29 -5", "shape.txt: found '29 -5', expected 'rows dimensions'"),
    ("id.txt", "vid_a_0 " * 29, "id.txt: found 29 names, 1 different ones, expected 29"),
    ("FeatureData/resnext", Path.mkdir, "found '', expected one of .*FeatureData: resnet, resnext"),
    ("msvdtest.txt", "vid_g\nvid_h\nvid_i\nvid_j", "caption.txt: found no entry for 1 .*: vid_j"),
    ("msvdtest.txt", "vid_g", "no entry for 2 videos of msvdtest.caption.txt: vid_h, vid_i"),
    ("test_list.txt", "vid_g\nvid_h\nvid_g", "test_list.txt: vid_g: found more than once"),
    ("val_list.txt", b"vid_e\xff", "val_list.txt:1: byte 0xff is not UTF-8"),
    ("msvdval.caption.txt", "vid_e#0 good\nvid_f a dog", "caption.txt:2: found 'vid_f a dog'"),
    ("TextData/otherval.caption.txt", "x", "otherval.caption.txt, expected one file"),
    ("raw-captions.pkl", {"vid_z": os.system}, r"names \w+.system, which is never loaded; convert"),
    ("raw-captions.pkl", {"name of vid_e": []}, "raw-captions.pkl: vid_e: found 0 captions"),
    (
        "raw-captions.pkl",
        {"name of vid_e": ["a" * 10_001]},
        "vid_e: found 10001 characters",
    ),
    ("raw-captions.pkl", pickle.dumps([1]), "raw-captions.pkl: found list, expected a dict"),
    ("resnet.pkl", Path.unlink, "resnet: found none, expected one file that ends in .npz, .pkl"),
    ("resnet.pkl", {"vid_g": [[1.0], [1.0, 2.0]]}, "resnet.pkl: vid_g: not an array"),
    ("resnet.pkl", {"vid_g": np.nan}, r"resnet.pkl: vid_g: found float64 \[\], expected numbers"),
    (
        "resnet.pkl",
        {"vid_b": np.ones((2, 3))},
        r"resnet.pkl: found .*\[3, 5\] dimensions",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), FAULTS)
def test_a_fault_is_refused_and_nothing_is_written(tmp_path, name, content, message):
    layout = "experts" if name.endswith((".pkl", "_list.txt")) else "dual_encoding"
    source = WRITERS[layout](tmp_path / "source")
    file = next(source.rglob(name), source / name)
    if callable(content):
        content(file)
    elif isinstance(content, dict):
        file.write_bytes(pickle.dumps(pickle.loads(file.read_bytes()) | content))
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises((DataError, ConfigError), match=message):
        convert(source, tmp_path / "out", layout)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 damaged", np.array([os.system], object)])
def test_an_archive_that_is_damaged_or_of_objects_is_refused(tmp_path, content):
    file = write_experts(tmp_path / "source", "npz") / "structured-symlinks" / "raw-captions.npz"
    file.write_bytes(content) if isinstance(content, bytes) else np.savez(file, vid_a=content)
    with pytest.raises(DataError, match=r"raw-captions\.npz: cannot be read"):
        convert(tmp_path / "source", tmp_path / "out", "experts")


class Hostile:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_what_python_2_wrote_is_read(tmp_path):
    # {'a': numpy.array([1.5], '<f4')} by protocol 2, its strings being bytes.
    content = (
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x00\x00\xc0?tbs."
    )
    (tmp_path / "old.pkl").write_bytes(content)
    np.testing.assert_equal(
        convert_video._read_pickle(tmp_path / "old.pkl"), {"a": np.float32([1.5])}
    )


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.system, ("touch {}",)),
        (os.mkdir, ("{}",)),
        (eval, ("open('{}', 'w')",)),
        (getattr, ("text", "upper")),
        (np.save, ("{}", [1])),
        (np.load, ("{}",)),
        (pickle.loads, (pickle.dumps(Hostile(os.mkdir, "{}")),)),
    ],
)
@pytest.mark.parametrize("protocol", [0, 4])
def test_no_function_of_a_pickle_is_called(tmp_path, function, arguments, protocol):
    target, path = tmp_path / "touched.npy", tmp_path / "bad.pkl"
    fill = [a.format(target) if isinstance(a, str) else a for a in arguments]
    content = {"a": np.zeros(2), "b": [Hostile(function, *fill)]}
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(pickle.UnpicklingError, match=r"names [\w.]+, which is never loaded"):
        convert_video._read_pickle(path)
    assert sorted(tmp_path.iterdir()) == [path]


def test_other_codecs_are_not_looked_up(tmp_path):
    path = tmp_path / "bad.pkl"
    path.write_bytes(b"c_codecs\nencode\n(Vabc\nVhex\ntR.")
    with pytest.raises(pickle.UnpicklingError, match="bytes as hex, expected latin1"):
        convert_video._read_pickle(path)


def test_a_large_memo_takes_no_memory(tmp_path):
    """Ten bytes of a pickle ask for entry 2^26 of the memo."""
    path = tmp_path / "data.pkl"
    path.write_bytes(b"\x80\x02Nr\x00\x00\x00\x04.")
    tracemalloc.start()
    try:
        assert convert_video._read_pickle(path) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
