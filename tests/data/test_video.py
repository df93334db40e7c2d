"""Videos with captions: each layout is read, batched and ranked; damaged files are refused."""

import json
import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from l2rm_jax.check import check
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.run.inputs import check_values
from l2rm_jax.train import train
from tests import tiny
from tests.data.videos import (
    DIMENSIONS,
    FRAMES,
    MAX_FRAMES,
    VIDEOS,
    captions_of,
    config_of,
    write_dual_encoding,
    write_experts,
)

SAMPLED = {"vid_b": [0, 2, 4, 6], "vid_f": [0, 1, 3, 4]}  # evenly, of 7 and of 5 frames

WRITERS = {
    "dual_encoding": write_dual_encoding,
    "dual_encoding, apart": lambda path: write_dual_encoding(path, apart=True),
    "experts": write_experts,
    "experts, pickle": lambda path: write_experts(path, "pickle"),
    "experts, npz": lambda path: write_experts(path, "npz"),
}


def load(config):
    return load_data(config.data, config.mismatch, workdir=None)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_layout_is_read(tmp_path, kind):
    data = load(config_of(WRITERS[kind](tmp_path), kind.split(",")[0]))
    for split, videos in zip(data.splits, VIDEOS.values(), strict=True):
        counts = [captions for _, captions in videos.values()]
        assert split.captions_per_image.tolist() == counts
        np.testing.assert_array_equal(split.caption_image, np.repeat(range(len(videos)), counts))
        expected = captions_of({"dev": "val"}.get(split.split, split.split))
        assert split.captions == [caption for own in expected.values() for caption in own]
        everyone = np.arange(len(videos))
        frames = split.images.region_counts(everyone)
        assert frames.tolist() == [min(n, MAX_FRAMES) for n, _ in videos.values()]
        for rows, count, video in zip(split.images.rows(everyone), frames, videos, strict=True):
            kept = SAMPLED.get(video, slice(None))
            np.testing.assert_array_equal(rows[:count], FRAMES[video][kept])
            assert not rows[count:].any()
    assert data.train.images.shape == (4, MAX_FRAMES, DIMENSIONS)
    # Under the protocol of images, all captions of a video move together.
    stored = [set(data.train.stored_image[data.train.caption_image == video]) for video in range(4)]
    assert all(len(images) == 1 for images in stored)


def test_videos_are_batched_checked_and_ranked(tmp_path):
    config = config_of(write_dual_encoding(tmp_path), "dual_encoding")
    data = load(config)
    [batch] = [
        step["pairs"]
        for step in TrainStream(
            data.train, {"pairs": np.arange(10)}, batch_size=10, seed=0, epoch=0
        ).iterate()
    ]
    np.testing.assert_array_equal(batch.image_index, data.train.stored_image[batch.pair_index])
    assert batch.regions.tolist() == data.train.images.region_counts(batch.image_index).tolist()
    report = check(config)
    assert "train: 4 images of 1 to 4 regions x 5 features, 10 captions, 1 to 4 an image" in report
    assert "features             float32, each image stored once" in report
    own = np.eye(3, dtype=np.float32)[data.test.caption_image].T
    row = recalls(own, data.test.captions_per_image)
    assert row["rsum"] == 600 and row["t2i_median"] == 1
    assert data.test.head(2).captions == data.test.captions[:7]
    config.data.train_images = 2
    assert load(config).train.captions == data.train.captions[:6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "head"),
    [
        ("dual_encoding", "vse"),
        ("experts", "vse"),
        ("dual_encoding", "de"),
    ],
)
def test_a_run_trains_and_ranks_videos(tmp_path, layout, head):
    config = config_of(WRITERS[layout](tmp_path / "data"), layout)
    config.method, config.model.head = "rcl", head
    config.de.image_gru = config.de.text_gru = config.de.filters = 4
    config.model.update(tiny.MODEL)
    config.train.warmup_epochs, config.train.epochs = 0, 2
    results = train(config, tmp_path / "run", Replicas(jax.devices()[:1]))
    [row] = results["test"].values()
    assert row["images"] == 3 and 1 <= row["t2i_median"] <= 3 and 0 < row["rsum"] <= 600
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [record["epoch"] for record in records if record["kind"] == "epoch"] == [1, 2]


def test_a_feature_of_a_whole_video(tmp_path):
    home = write_experts(tmp_path) / "structured-symlinks"
    means = {video: frames.mean(0) for video, frames in FRAMES.items()}
    (home / "means.pickle").write_bytes(pickle.dumps(means))
    config = config_of(tmp_path, "experts")
    config.data.features, config.data.max_frames = "means", 1
    train = load(config).train
    np.testing.assert_array_equal(train.images.rows([1]), means["vid_b"][None, None])


def change(path: Path, text: str):
    path.write_text(text)


def set_pickle(path: Path, key: str, value: object):
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), key: value}))


FAULTS = {
    "no features": (
        "dual_encoding",
        lambda p: (p / "FeatureData/resnet/feature.bin").unlink(),
        r"feature.bin: found 0 bytes, expected 580 for float32 \[29, 5\]",
    ),
    "truncated": (
        "dual_encoding",
        lambda p: os.truncate(p / "FeatureData/resnet/feature.bin", 576),
        "feature.bin: found 576 bytes, expected 580",
    ),
    "shape": (
        "dual_encoding",
        lambda p: change(p / "FeatureData/resnet/shape.txt", "29 -5"),
        "shape.txt: found '29 -5', expected 'rows dimensions'",
    ),
    "names": (
        "dual_encoding",
        lambda p: change(p / "FeatureData/resnet/id.txt", "vid_a_0 " * 29),
        "id.txt: found 29 names, 1 different ones, expected 29",
    ),
    "another feature": (
        "dual_encoding",
        lambda p: (p / "FeatureData/resnext").mkdir(),
        "data.features is '', expected one of .*FeatureData: resnet, resnext",
    ),
    "no frames": (
        "dual_encoding",
        lambda p: change(p / "ImageSets/msvdtest.txt", "vid_g\nvid_h\nvid_i\nvid_j"),
        "caption.txt: found no entry for 1 videos of msvdtest.txt: vid_j",
    ),
    "not listed": (
        "dual_encoding",
        lambda p: change(p / "ImageSets/msvdtest.txt", "vid_g"),
        "msvdtest.txt: found no entry for 2 videos of msvdtest.caption.txt: vid_h, vid_i",
    ),
    "listed twice": (
        "experts",
        lambda p: change(p / "structured-symlinks/test_list.txt", "vid_g\nvid_h\nvid_g"),
        "test_list.txt: vid_g: found more than once",
    ),
    "no number": (
        "dual_encoding",
        lambda p: change(p / "TextData/msvdval.caption.txt", "vid_e#0 good\nvid_f a dog"),
        "caption.txt:2: found 'vid_f a dog', expected 'video#number caption'",
    ),
    "no set": (
        "dual_encoding",
        lambda p: (p / "TextData/msvdval.caption.txt").unlink(),
        r"found none, expected one file TextData/\*val.caption.txt",
    ),
    "two sets": (
        "dual_encoding",
        lambda p: change(p / "TextData/otherval.caption.txt", "x"),
        "msvdval.caption.txt, .*otherval.caption.txt, expected one file",
    ),
    "hostile": (
        "experts",
        lambda p: set_pickle(p / "structured-symlinks/raw-captions.pkl", "vid_z", os.system),
        r"raw-captions.pkl: .*names \w+.system, which is never loaded; convert",
    ),
    "no expert": (
        "experts",
        lambda p: (p / "structured-symlinks/aggregated_imagenet/resnet.pkl").unlink(),
        "aggregated_imagenet/resnet: found none, expected one file that ends in .npz, .pkl",
    ),
    "expert twice": (
        "experts",
        lambda p: np.savez(p / "structured-symlinks/aggregated_imagenet/resnet", a=1),
        "resnet.npz, .*resnet.pkl, expected one file",
    ),
    "no captions": (
        "experts",
        lambda p: set_pickle(p / "structured-symlinks/raw-captions.pkl", "name of vid_e", []),
        "raw-captions.pkl: vid_e: found 0 captions",
    ),
    "unknown video": (
        "experts",
        lambda p: change(p / "structured-symlinks/val_list.txt", "vid_z"),
        "raw-captions.pkl: found no entry for 1 videos of val_list.txt: vid_z",
    ),
    "no dict": (
        "experts",
        lambda p: (p / "structured-symlinks/raw-captions.pkl").write_bytes(pickle.dumps([1])),
        "raw-captions.pkl: found list, expected a dict by video",
    ),
    "a number as captions": (
        "experts",
        lambda p: set_pickle(p / "structured-symlinks/raw-captions.pkl", "name of vid_e", 3),
        "raw-captions.pkl: vid_e: found int, expected a list of captions",
    ),
    "endless caption": (
        "experts",
        lambda p: set_pickle(
            p / "structured-symlinks/raw-captions.pkl", "name of vid_e", ["a" * 10_001]
        ),
        "raw-captions.pkl: vid_e: found 10001 characters, expected a caption of at most 10000",
    ),
    "uneven frames": (
        "experts",
        lambda p: set_pickle(
            p / "structured-symlinks/aggregated_imagenet/resnet.pkl", "vid_g", [[1.0], [1.0, 2.0]]
        ),
        "resnet.pkl: vid_g: not an array",
    ),
    "no list": (
        "experts",
        lambda p: (p / "structured-symlinks/val_list.txt").unlink(),
        "val_list.txt: no such file",
    ),
    "list not UTF-8": (
        "experts",
        lambda p: (p / "structured-symlinks/val_list.txt").write_bytes(b"vid_e\xff"),
        "val_list.txt:1: byte 0xff is not UTF-8",
    ),
    "empty list": (
        "experts",
        lambda p: change(p / "structured-symlinks/val_list.txt", " \n"),
        "val_list.txt: the file is empty",
    ),
    "missing feature": (
        "experts",
        lambda p: set_pickle(
            p / "structured-symlinks/aggregated_imagenet/resnet.pkl", "vid_g", np.nan
        ),
        r"resnet.pkl: vid_g: found float64 \[\], expected numbers \[dimensions\] or",
    ),
    "dimensions": (
        "experts",
        lambda p: set_pickle(
            p / "structured-symlinks/aggregated_imagenet/resnet.pkl", "vid_b", np.ones((2, 3))
        ),
        r"resnet.pkl: found features of \[3, 5\] dimensions, expected one",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_refused_and_listed(tmp_path, fault):
    layout, damage, message = FAULTS[fault]
    config = config_of(WRITERS[layout](tmp_path), layout)
    damage(tmp_path)
    with pytest.raises((DataError, ConfigError), match=message):
        load(config)
    with pytest.raises(DataError, match=message):
        check(config)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_a_newline_ends_a_caption(tmp_path, end):
    config = config_of(write_dual_encoding(tmp_path), "dual_encoding")
    captions = ["a\u2028dog", "a\x85cat runs", "a\x0bman", "two\x1cmen", "a \rbird"]
    lines = [f"vid_{'ef'[k % 2]}#{k} {caption}" for k, caption in enumerate(captions)]
    text = end.join([*lines, ""])
    (tmp_path / "TextData/msvdval.caption.txt").write_bytes(text.encode())
    assert load(config).dev.captions == [*captions[::2], *captions[1::2]]


def test_features_that_are_not_finite_are_listed(tmp_path):
    config = config_of(write_dual_encoding(tmp_path), "dual_encoding")
    home = tmp_path / "FeatureData" / "resnet"
    rows = np.fromfile(home / "feature.bin", np.float32).reshape(-1, DIMENSIONS)
    rows[(home / "id.txt").read_text().split().index("vid_h_1"), 2] = np.inf
    rows.tofile(home / "feature.bin")
    message = r"bin, videos of msvdtest: vid_h holds inf \(frame 1, dimension 2\)"
    with pytest.raises(DataError, match=message):
        check(config)
    data = load(config)
    check_values(data.dev)
    with pytest.raises(DataError, match=message):
        check_values(data.test)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 damaged", b"no archive"])
def test_a_damaged_archive_is_refused(tmp_path, content):
    config = config_of(write_experts(tmp_path, "npz"), "experts")
    (tmp_path / "structured-symlinks" / "raw-captions.npz").write_bytes(content)
    with pytest.raises(
        DataError, match=r"raw-captions\.npz: cannot be read .*expected a \.npz archive"
    ):
        load(config)


def test_objects_in_an_archive_are_not_unpickled(tmp_path):
    config = config_of(write_experts(tmp_path, "npz"), "experts")
    captions = np.array([os.system, "a dog"], object)
    np.savez(tmp_path / "structured-symlinks" / "raw-captions", vid_a=captions)
    with pytest.raises(
        DataError, match=r"raw-captions\.npz: cannot be read .*expected a \.npz archive"
    ):
        load(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layout": "video"},
            "data.layout: found 'video', expected one of precomp, dual_encoding, experts",
        ),
        ({"max_frames": 0}, "data.max_frames: 0, expected at least 1"),
        ({"features": "c3d"}, "data.features is 'c3d', expected one of .*: resnet"),
        ({"features": "", "layout": "experts"}, "data.features is empty; expected the file of an"),
        ({"path": ""}, "data.path: empty; expected the directory of the videos"),
        ({"path": "/nowhere"}, "/nowhere: no such directory"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, changes, message):
    config = config_of(write_dual_encoding(tmp_path), "dual_encoding")
    config.data.update(changes)
    with pytest.raises((ConfigError, DataError), match=message):
        load(config)
