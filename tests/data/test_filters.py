"""Filters: the pairs that they drop, the fields of a results row, and errors."""

import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.check import check
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.errors import ConfigError, DataError

PAIRS = 60  # 12 pictures with 5 captions each
SCORES = np.random.default_rng(0).permutation(PAIRS) / PAIRS


@pytest.fixture
def config(tmp_path):
    config = defaults.get_config()
    config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 12, 4, 4
    config.mismatch.protocol, config.train.batch_size = "caption", 8
    np.save(tmp_path / "clip.npy", SCORES)
    return config


def ask(config, tmp_path, kind, value=0.0, scores="clip.npy"):
    config.data.filter, config.data.filter_value = kind, value
    config.data.scores = str(tmp_path / scores) if kind in ("score", "share") else ""
    return load_data(config.data, config.mismatch, workdir=None)


@pytest.mark.parametrize(
    ("kind", "value", "name"),
    [
        ("truth", 0.0, "truth"),
        ("score", 0.55, "score 0.55 of clip.npy"),
        ("share", 0.25, "share 0.25 of clip.npy"),
    ],
)
def test_the_pairs_that_are_kept(config, tmp_path, kind, value, name):
    everything = ask(config, tmp_path, "none")
    whole = everything.train
    data = ask(config, tmp_path, kind, value)
    expected = {
        "truth": np.flatnonzero(whole.stored_image == whole.caption_image),
        "score": np.flatnonzero(SCORES >= 0.55),
        "share": np.sort(np.argsort(SCORES)[-15:]),
    }[kind]
    train = data.train
    assert 0 < len(train) == len(expected) < PAIRS
    assert train.captions == [whole.captions[pair] for pair in expected]
    np.testing.assert_array_equal(train.stored_image, whole.stored_image[expected])
    np.testing.assert_array_equal(train.caption_image, whole.caption_image[expected])
    assert all(np.array_equal(train.tokens[n], whole.tokens[k]) for n, k in enumerate(expected))
    assert (len(data.dev), len(data.test)) == (20, 20)  # unfiltered
    row = data.mismatch.row()
    wrong = (whole.stored_image != whole.caption_image)[expected].mean()
    assert (row["filter"], row["filter_kept"]) == (name, len(expected) / PAIRS)
    assert row["filter_true_rate"] == pytest.approx(wrong)
    unfiltered = everything.mismatch.row()
    assert {key: row[key] for key in unfiltered} == unfiltered and "filter" not in unfiltered


def test_what_is_kept_is_trained_on(config, tmp_path):
    train = ask(config, tmp_path, "truth").train
    stream = TrainStream(train, {"pairs": np.arange(len(train))}, batch_size=8, seed=0, epoch=0)
    for step in stream.iterate():
        batch = step["pairs"]
        np.testing.assert_array_equal(batch.image_index, train.caption_image[batch.pair_index])
        np.testing.assert_array_equal(batch.images, train.images.rows(batch.image_index))
    config.data.filter = "share"
    config.data.filter_value, config.data.scores = 0.5, str(tmp_path / "clip.npy")
    report = check(config)
    assert "30 captions, 1 to 4 per image" in report
    assert "filter share 0.5 of clip.npy, filter_kept 0.5" in report.splitlines()[-1]


def test_equal_scores_leave_the_share_asked_for(config, tmp_path):
    np.save(tmp_path / "equal.npy", np.zeros(PAIRS, int))
    train = ask(config, tmp_path, "share", 0.2, scores="equal.npy").train
    np.testing.assert_array_equal(train.caption_image, np.repeat([0, 1, 2], [5, 5, 2])[:12])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"filter": "clip"}, ConfigError, "data.filter: found 'clip'"),
        ({"filter": "score"}, ConfigError, "data.filter=score requires"),
        ({"filter_value": 0.0}, ConfigError, "filter_value: found 0"),
        ({"filter_value": 1.5}, ConfigError, "filter_value: found 1.5"),
        ({"filter_value": 1e-3}, DataError, r"share .*all 60 .* scores 0 to 0.98"),
        ({"filter": "score", "filter_value": 2.0}, DataError, "score .*all 60 "),
        ({"scores": "none.npy"}, DataError, "none.npy: no such file"),
        (
            {"filter": "score", "filter_value": 0.0},
            DataError,
            r"filter_value: found 0, .*none of the 60 .*scores 0 to 0\.98\d*",
        ),
        ({"filter": "truth"}, ConfigError, "filter_value .*filter=truth"),
        ({"filter": "none"}, ConfigError, "filter_value .*filter=none"),
    ],
)
def test_settings_that_do_not_fit(config, tmp_path, changes, error, message):
    given = {"filter": "share", "filter_value": 0.5}
    if changes.get("filter", "share") == "share" or "filter_value" in changes:
        given["scores"] = str(tmp_path / "clip.npy")
    config.data.update({**given, **changes})
    with pytest.raises(error, match=message):
        load_data(config.data, config.mismatch, workdir=None)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros(59), r"found float64 \[59\]"),
        (np.zeros((60, 1)), r"found float64 \[60, 1\]"),
        (np.zeros(60, bool), r"found bool \[60\]"),
        (np.where(np.arange(60) == 7, np.nan, 0.0), "entry 7: found nan"),
    ],
)
def test_scores_that_do_not_fit(config, tmp_path, scores, message):
    np.save(tmp_path / "bad.npy", scores)
    with pytest.raises(DataError, match=message) as error:
        ask(config, tmp_path, "share", 0.5, scores="bad.npy")
    assert str(tmp_path / "bad.npy") in str(error.value)


IMAGE_OF_ROW = [0, 1, 2, 0, 1, 3, 3, 2, 4, 5, 4, 9, 5, 0]  # in the table; row 12 is rejected
SPLIT_OF_IMAGE = ["train", "train", "dev", "train", "test", "train", *[""] * 3, "train"]


@pytest.fixture
def imported(tmp_path):
    """Config of imported data whose table has the captions of an image apart."""
    pytest.importorskip("datasets", reason="the extra `import` is not installed")
    from l2rm_jax.importing.importer import import_data
    from l2rm_jax.importing.request import Request

    rows = [
        f"{image}.jpg,{'' if image == 9 else f'caption of row {row}'},{SPLIT_OF_IMAGE[image]}"
        for row, image in enumerate(IMAGE_OF_ROW, 1)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["filepath,title,split", *rows, ""]))
    np.save(tmp_path / "i.npy", np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32))
    source, vectors = str(tmp_path / "t.csv"), str(tmp_path / "i.npy")
    import_data(Request(tmp_path / "data", source, image_vectors=vectors, max_rejected=0.5))
    config = defaults.get_config()
    config.data.path, config.data.name = str(tmp_path / "data"), "data"
    return config


def caption_rows(data):
    return sorted(int(caption.split()[-1]) for caption in data.train.captions)


def ask_with(config, tmp_path, scores):
    np.save(tmp_path / "scores.npy", scores)
    config.data.scores = str(tmp_path / "scores.npy")
    config.data.filter, config.data.filter_value = "score", 0.5
    return load_data(config.data, config.mismatch, workdir=None)


@pytest.mark.parametrize("images", [0, 2])
def test_scores_by_row_of_the_table_are_those_of_its_rows(imported, tmp_path, caplog, images):
    imported.data.train_images = images
    rows = caption_rows(load_data(imported.data, imported.mismatch, workdir=None))
    scores = np.random.default_rng(1).uniform(size=len(IMAGE_OF_ROW))
    found = caption_rows(ask_with(imported, tmp_path, scores))
    assert 0 < len(found) < len(rows) and found == [row for row in rows if scores[row - 1] >= 0.5]
    assert not caplog.records


def test_scores_of_the_pairs_in_another_order_than_the_table_have_a_warning(
    imported, tmp_path, caplog
):
    rows = np.load(tmp_path / "data" / "train_rows.npy")
    assert (np.diff(rows) < 0).any()
    scores = np.arange(len(rows)) / len(rows)
    expected = sorted(rows[scores >= 0.5])
    data = ask_with(imported, tmp_path, scores)
    assert caption_rows(data) == expected and "filter_true_rate" not in data.mismatch.row()
    [record] = caplog.records
    assert "train_rows.npy" in record.getMessage() and "order" in record.getMessage()
    caplog.clear()
    (tmp_path / "kept.npy").touch()  # as beside the scores of an audit
    assert caption_rows(ask_with(imported, tmp_path, scores)) == expected and not caplog.records


def test_scores_of_neither_the_pairs_nor_the_table_name_both_numbers(imported, tmp_path):
    with pytest.raises(DataError, match=r"found .*\[5\], expected numbers \[9\].* or \[14\]"):
        ask_with(imported, tmp_path, np.ones(5))
    imported.mismatch.rate = 0.5
    with pytest.raises(DataError, match=r"scores by row of the table.*mismatched deliberately"):
        ask_with(imported, tmp_path, np.linspace(0, 1, len(IMAGE_OF_ROW)))
