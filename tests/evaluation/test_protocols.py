"""Protocols of the published tables: the splits that they accept and the rows of each."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation import protocols, recall


def block_scores(images: int, captions_per_image: int) -> np.ndarray:
    """Scores with the right image first within each fifth, but second among all images."""
    sims = np.zeros((images, images * captions_per_image), np.float32)
    rows = np.arange(images)
    for offset in range(captions_per_image):
        sims[rows, rows * captions_per_image + offset] = 1.0
        sims[rows, (rows + images // 5) % images * captions_per_image + offset] = 2.0
    return sims


def test_coco_scores_give_both_tables():
    rows = protocols.recall_rows(block_scores(5000, 5), 5, "coco-1k-5fold, coco-5k")
    assert list(rows) == ["coco-1k-5fold", "coco-5k"]
    folds, whole = rows.values()
    assert (folds["images"], whole["images"]) == (1000, 5000)
    assert folds["i2t_r1"] == folds["t2i_r1"] == 100.0 and folds["rsum"] == 600.0
    assert whole["i2t_r1"] == whole["t2i_r1"] == 0.0
    assert (whole["i2t_r10"], whole["i2t_median"], whole["t2i_mean"]) == (100.0, 6.0, 2.0)


@pytest.mark.parametrize(
    ("protocol", "images", "captions_per_image"),
    [("f30k-1k", 1000, 5), ("cc152k-1k", 1000, 1), ("custom", 7, 3)],
)
def test_a_row_carries_its_protocol(protocol, images, captions_per_image):
    sims = np.random.default_rng(0).random((images, images * captions_per_image))
    rows = protocols.recall_rows(sims, captions_per_image, protocol)
    assert rows == {protocol: {"images": images, **recall.recalls(sims, captions_per_image)}}


@pytest.mark.parametrize(
    ("protocol", "images", "captions_per_image", "message"),
    [
        ("coco-5k", 1000, 5, "1000 .*5000 with 5 .*data.test_split=testall"),
        ("coco-5k,f30k-1k", 5000, 5, "5000 .*1000 with 5 .*f30k-1k"),
        ("f30k-1k", 1000, 1, "1000 .*with 1 .*1000 with 5"),
        ("coco-1k", 1000, 5, "'coco-1k'"),
        ("msvd", 100, 41, "100 .*with 41 .*670 .*evaluation.protocol=custom"),
        ("msrvtt", 2990, np.append(np.full(2989, 20), 19), "2990 .*with 19 to 20 .*with 20"),
        ("", 1000, 5, "''"),
    ],
)
def test_a_split_of_another_size_is_refused(protocol, images, captions_per_image, message):
    with pytest.raises(ConfigError, match=r"evaluation\.protocol: .*" + message):
        protocols.check_protocols(protocol, images, captions_per_image)


def test_the_splits_of_videos_are_accepted():
    """All 2990 videos of MSR-VTT have 20 captions; those of MSVD differ, and one has 81."""
    protocols.check_protocols("msrvtt", 2990, 20)
    counts = np.random.default_rng(0).integers(18, 82, size=670)
    protocols.check_protocols("msvd", 670, counts)
    counts[:] = 2  # the same, with a small matrix
    counts[::3] = 1
    sims = np.random.default_rng(0).random((670, counts.sum()), np.float32)
    rows = protocols.recall_rows(sims, counts, "msvd")
    assert rows == {"msvd": {"images": 670, **recall.recalls(sims, counts)}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f30k", "f30k-1k"),
        ("coco", "coco-1k-5fold,coco-5k"),
        ("cc152k", "cc152k-1k"),
        ("flickr8k", "custom"),
        ("video", "custom"),
    ],
)
def test_a_config_reports_the_published_tables_of_its_data(name, expected):
    path = Path(__file__).parents[2] / "configs" / f"{name}.py"
    config = runpy.run_path(str(path))["get_config"]()
    assert config.evaluation.protocol == expected
    assert config.data.test_split == ("testall" if name == "coco" else "test")


def test_a_dual_softmax_row_is_labelled_and_stays_within_its_fold(monkeypatch):
    monkeypatch.setitem(protocols.PROTOCOLS, "small-5fold", protocols.Protocol(60, 2, folds=5))
    sims = np.random.default_rng(0).random((60, 120), dtype=np.float32)
    rows = protocols.recall_rows(sims, 2, "small-5fold", 0.1)
    assert list(rows) == ["small-5fold", "small-5fold, dual softmax 0.1"]
    blocks = [sims[12 * i : 12 * (i + 1), 24 * i : 24 * (i + 1)] for i in range(5)]
    for row, temperature in zip(rows.values(), (0.0, 0.1), strict=True):
        parts = [recall.recalls(block, 2, temperature)["rsum"] for block in blocks]
        assert row["rsum"] == pytest.approx(np.mean(parts))
    assert rows["small-5fold"] != rows["small-5fold, dual softmax 0.1"]


def test_chance_has_a_row_for_each_size():
    def names(text: str, images: int, captions_per_image: int) -> dict[str, float]:
        rows = protocols.chance_rows(images, captions_per_image, text)
        return {name: row["images"] for name, row in rows.items()}

    assert names("custom", 60, 2) == {"chance": 60}
    assert names("coco-1k-5fold", 5000, 5) == {"chance": 1000}
    both = {"chance, 1000 images": 1000, "chance, 5000 images": 5000}
    assert names("coco-1k-5fold,coco-5k,custom", 5000, 5) == both
