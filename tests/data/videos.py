"""Small video data sets in each layout, and a config for them."""

import pickle
from pathlib import Path

import numpy as np

from l2rm_jax import config as defaults

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


def config_of(path: Path, layout: str):
    config = defaults.default()
    config.data.name, config.data.path, config.data.layout = "msvd", str(path), layout
    config.data.features = "aggregated_imagenet/resnet" if layout == "experts" else ""
    config.data.max_frames, config.data.min_count = MAX_FRAMES, 1
    config.mismatch.rate, config.train.batch_size = 0.5, 4
    return config
