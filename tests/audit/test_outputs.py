"""The files of an audit: each is what a reader expects, and two writings are the same bytes."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from l2rm_jax.audit import outputs
from l2rm_jax.audit.inputs import Settings
from l2rm_jax.audit.outputs import write_audit
from l2rm_jax.audit.review import HEADER, draw_review
from l2rm_jax.config import get_config
from l2rm_jax.data import filters
from l2rm_jax.errors import ConfigError, DataError
from tests.audit.made import (
    HOSTILE,
    IMAGES,
    PAIRS,
    POSTERIOR,
    make_audit,
    make_inputs,
)


def write_decisions(path, *lines):
    path.write_text("\n".join([",".join(HEADER), *lines, ""]))
    return str(path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_audit(make_audit(), tmp_path_factory.mktemp("audit") / "out")


def test_all_files_are_there_and_two_writings_are_equal(written, tmp_path):
    names = {path.name for path in written.iterdir()}
    assert names == {
        *("pairs.parquet", "kept.npy", "scores.npy", "report.md", "report.json", "gallery.html")
    }
    again = write_audit(make_audit(), tmp_path / "again")
    for name in names:
        assert (written / name).read_bytes() == (again / name).read_bytes(), name
    with pytest.raises(ConfigError, match=r"out: already exists, expected the name of a new"):
        write_audit(make_audit(), written)


def test_the_table_has_every_pair_in_the_order_of_the_data(written):
    table = pq.read_table(written / "pairs.parquet").to_pydict()
    assert table["row"] == list(range(PAIRS)) and table["image_row"] == [k // 2 for k in range(40)]
    assert table["image"][3] == "photos/1.jpg" and table["caption"][0] == HOSTILE
    assert table["posterior"] == POSTERIOR.tolist()
    assert table["kind"][:7] == [*["doubtful"] * 4, "shifted", "alternate", "matched"]
    assert table["proposal_1"][:2] == [3, None] and table["probability_2"][:2] == [0.1, None]
    assert table["none_fits"][:2] == [0.5, None] and table["id"] == [
        str(row) for row in range(PAIRS)
    ]
    assert "mismatched_on_purpose" not in table and "decision" not in table


def test_without_pyarrow_the_table_is_csv(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    out = write_audit(make_audit(), tmp_path / "out")
    lines = (out / "pairs.csv").read_text().splitlines()
    assert lines[0].startswith("row,id,image,image_row,caption,fold,group,similarity,")
    assert not (out / "pairs.parquet").exists()


def test_scores_are_what_the_filter_takes(written):
    config = SimpleNamespace(
        filter="score", filter_scores=str(written / "scores.npy"), filter_value=0.5, train_images=0
    )
    kept = filters.kept_pairs(config, np.ones(PAIRS, bool))
    np.testing.assert_array_equal(kept, np.load(written / "kept.npy"))
    np.testing.assert_array_equal(kept, np.flatnonzero(POSTERIOR <= 0.5))


def test_decisions_count_more_than_what_was_computed(tmp_path):
    rows, weight = draw_review(POSTERIOR, seed=0)
    first = f"{rows[0]},unsure,,review,{weight[0]}"
    others = [row for row in (0, 30, 31) if row != rows[0]]
    lines = [f"{row},{'fits' if row == 0 else 'wrong'},3,list," for row in others]
    settings = Settings(review=write_decisions(tmp_path / "d.csv", first, *lines))
    audit = make_audit(settings=settings, inputs=make_inputs(truth=np.arange(PAIRS) < 5))
    out = write_audit(audit, tmp_path / "out")
    scores, kept = np.load(out / "scores.npy"), np.load(out / "kept.npy")
    assert scores[0] == 1 and scores[30] == 0 and 0 in kept and 30 not in kept
    assert np.load(out / "known.npy").tolist() == [0]
    table = pq.read_table(out / "pairs.parquet").to_pydict()
    assert table["decision"][30] == "wrong" and table["decision_caption"][30] == 3
    assert table["mismatched_on_purpose"][:6] == [True] * 5 + [False]
    report = json.loads((out / "report.json").read_text())
    assert report["decided"] == 1 + len(others) and report["reviewed_rate"] is None
    assert report["truth"]["rate"] == 5 / PAIRS


def test_decisions_of_another_audit_are_refused(tmp_path):
    settings = Settings(review=write_decisions(tmp_path / "d.csv", "3,fits,,review,123.5"))
    with pytest.raises(DataError, match=r"row 3 with weight 123\.5 is not of this audit's review"):
        write_audit(make_audit(settings=settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_pictures_of_the_built_in_data_set_are_drawn(tmp_path):
    config = get_config()
    config.data.scenes_train = IMAGES
    out = write_audit(make_audit(inputs=make_inputs(config=config)), tmp_path / "out")
    assert len(list((out / "pictures").glob("*.png"))) == IMAGES
    assert (out / "gallery.html").read_text().count("data-image=") == IMAGES
