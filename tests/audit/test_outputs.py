"""Files of an audit: each has what its reader expects, and two writings are the same bytes."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from l2rm_jax.audit import outputs
from l2rm_jax.audit.last_lines import describe_audit
from l2rm_jax.audit.review import HEADER, draw_review, read_decisions
from l2rm_jax.audit.run_columns import OfRun
from l2rm_jax.config import get_config
from l2rm_jax.data import filters
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.judging import read_judgement
from tests.audit.made import (
    HOSTILE,
    IMAGES,
    PAIRS,
    POSTERIOR,
    make_audit,
    make_judgement,
    make_pairs,
    mismatched_pairs,
    write,
)


def write_decisions(path, *lines):
    path.write_text("\n".join([",".join(HEADER), *lines, ""]))
    return str(path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(make_audit(), tmp_path_factory.mktemp("audit") / "out")


def test_all_files_are_there_and_two_writings_are_equal(written, tmp_path):
    names = {path.name for path in written.iterdir()}
    assert names == {
        *("pairs.parquet", "kept.npy", "scores.npy", "report.md", "report.json", "gallery.html"),
        *("judgement.npz", "kept_ids.txt", "suspects.csv"),
    }
    again = write(make_audit(), tmp_path / "again")
    for name in names:
        assert (written / name).read_bytes() == (again / name).read_bytes(), name
    with pytest.raises(ConfigError, match="out: "):
        write(make_audit(), written)


def test_arrays_are_written_by_what_they_were_made_of(written, tmp_path):
    out = make_audit().write(tmp_path / "out")
    assert (out / "pairs.parquet").read_bytes() == (written / "pairs.parquet").read_bytes()


def test_names_of_kept_images(written, tmp_path):
    pairs = make_pairs()
    kept = np.load(written / "kept.npy")
    names = (written / "kept_ids.txt").read_text().splitlines()
    assert names == [pairs.ids[image] for image in make_judgement().image_of[kept]]
    for ids in (None, list(map(str, range(len(pairs.ids))))):
        out = make_audit(pairs=make_pairs(ids=ids)).write(tmp_path / str(ids is None))
        assert not (out / "kept_ids.txt").exists()


def test_what_a_run_says_of_the_pairs_has_columns(tmp_path):
    loss = np.full(PAIRS, np.nan)
    loss[3] = 2.5
    called, dropped = np.full(PAIRS, "", object), np.full(PAIRS, "", object)
    called[3], dropped[4] = "mismatched", "filter"
    of_run = OfRun(dropped, loss, loss / 5, called)
    table = pq.read_table(write(make_audit(of_run=of_run), tmp_path / "out") / "pairs.parquet")
    columns = {name: table[name].to_pylist()[2:5] for name in ("loss", "loss_posterior", "called")}
    assert columns == {
        "loss": [None, 2.5, None],
        "loss_posterior": [None, 0.5, None],
        "called": [None, "mismatched", None],
    }
    assert table["dropped"].to_pylist()[3:5] == [None, "filter"]


def test_the_table_has_every_pair_in_the_order_of_the_data(written):
    table = pq.read_table(written / "pairs.parquet").to_pydict()
    assert table["row"] == list(range(PAIRS)) and table["image_of"] == [k // 2 for k in range(40)]
    assert table["image"][3] == "photos/1.jpg" and table["caption"][0] == HOSTILE
    assert table["posterior"] == POSTERIOR.tolist()
    assert table["kind"][:7] == [
        *["swapped_caption"] * 4,
        "uninformative",
        "near_duplicate",
        "matched",
    ]
    assert table["proposal_1"][:2] == [3, None] and table["probability_2"][:2] == [0.1, None]
    assert table["none_fits"][:2] == [0.5, None] and table["id"] == [
        str(row) for row in range(PAIRS)
    ]
    assert "mismatched_on_purpose" not in table and "decision" not in table


def test_without_pyarrow_the_table_is_csv(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    out = write(make_audit(), tmp_path / "out")
    lines = (out / "pairs.csv").read_text().splitlines()
    assert lines[0].startswith("row,id,image,image_of,caption,fold,group,similarity,")
    assert not (out / "pairs.parquet").exists()


def test_scores_are_what_the_filter_takes(written):
    config = SimpleNamespace(
        filter="score",
        scores=str(written / "scores.npy"),
        filter_value=0.5,
        train_images=0,
        path="",
    )
    matched = np.ones(PAIRS, bool)
    kept, _ = filters.kept_pairs(config, matched)
    np.testing.assert_array_equal(kept, np.load(written / "kept.npy"))
    np.testing.assert_array_equal(kept, np.flatnonzero(POSTERIOR <= 0.5))


def test_decisions_override_the_judgement(tmp_path):
    rows, weight = draw_review(POSTERIOR, seed=0)
    first = f"{rows[0]},unsure,,review,{weight[0]}"
    others = [row for row in (0, 30, 31) if row != rows[0]]
    lines = [f"{row},{'fits' if row == 0 else 'wrong'},3,list," for row in others]
    decisions = read_decisions(write_decisions(tmp_path / "d.csv", first, *lines), PAIRS)
    audit = make_audit(decisions=decisions, train=mismatched_pairs(np.arange(PAIRS) < 5))
    out = write(audit, tmp_path / "out")
    scores, kept = np.load(out / "scores.npy"), np.load(out / "kept.npy")
    assert scores[0] == 1 and scores[30] == 0 and 0 in kept and 30 not in kept
    assert np.load(out / "known.npy").tolist() == [0]
    decided = read_judgement(out / "judgement.npz")  # what training takes
    assert decided.posterior[0] == 0 and decided.posterior[30] == decided.posterior[31] == 1
    np.testing.assert_array_equal(1 - decided.posterior, scores)
    table = pq.read_table(out / "pairs.parquet").to_pydict()
    assert table["decision"][30] == "wrong" and table["decision_caption"][30] == 3
    assert table["mismatched_on_purpose"][:6] == [True] * 5 + [False]
    report = json.loads((out / "report.json").read_text())
    assert report["decided"] == 1 + len(others) and report["reviewed_rate"] is None
    assert report["truth"]["rate"] == 5 / PAIRS
    assert str(1 + len(others)) in describe_audit(audit, out)


def test_decisions_of_another_audit_are_refused(tmp_path):
    path = write_decisions(tmp_path / "d.csv", "3,fits,,review,123.5")
    decisions = read_decisions(path, PAIRS)
    with pytest.raises(DataError, match=r"row 3 .*123\.5"):
        write(make_audit(decisions=decisions), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_pictures_of_the_built_in_data_set_are_drawn(tmp_path):
    config = get_config()
    config.data.scenes_train = IMAGES
    out = write(make_audit(config=config), tmp_path / "out")
    assert len(list((out / "pictures").glob("*.png"))) == IMAGES
    assert (out / "gallery.html").read_text().count("data-image=") == IMAGES
