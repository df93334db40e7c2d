"""Frames, rates, rows, files and display of an audit, as a notebook uses them."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy.stats import norm

from l2rm_jax import Audit, Pairs, audit_pairs, open_audit
from l2rm_jax.audit import outputs
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.judging.judgement import MATCHED, SWAPPED_CAPTION
from l2rm_jax.judging.rate import Rate
from l2rm_jax.pages.markup import escape_text
from tests.audit.made import make_judgement
from tests.audit.two_sources import CAPTIONS, IMAGE_OF, IMAGES, PAIRS, TABLE, TEXTS, TRUTH

OF_USER = ["source", "uid", "price", "note", "table_kind", "table_proposal_1"]


@pytest.fixture(scope="module")
def audit() -> Audit:
    """An audit whose posteriors are exact, for mismatched and matched pairs four sigmas apart."""
    information = np.random.default_rng(5).standard_normal(PAIRS) + 4 * ~TRUTH
    share, of_random, of_matched = TRUTH.mean(), norm.pdf(information), norm.pdf(information - 4)
    posterior = share * of_random / (share * of_random + (1 - share) * of_matched)
    order, suspicious, fdr = np.argsort(-posterior), posterior > 0.5, np.empty(PAIRS)
    fdr[order] = np.cumsum(1 - posterior[order]) / np.arange(1, PAIRS + 1)
    judgement = make_judgement(
        **{"image_of": IMAGE_OF, "fold": IMAGE_OF % 5, "group": IMAGE_OF},
        **{"posterior": posterior, "posterior_set": posterior, "posterior_caption": posterior},
        **{"information": information, "similarity": information, "order": order, "fdr": fdr},
        kind=np.where(suspicious, SWAPPED_CAPTION, MATCHED),
        proposal=np.where(suspicious[:, None], [3, 7], -1),
        probability=np.where(suspicious[:, None], [0.4, 0.1], np.nan),
        none_fits=np.where(suspicious, 0.5, np.nan),
        **{"p": np.full(PAIRS, np.nan), "likeness": np.full(PAIRS, np.nan)},
        nearest_images=np.zeros((len(IMAGES), 3), np.int64),
        rate=Rate(share, share - 0.03, share + 0.03),
    )
    return Audit(Pairs.from_arrays(IMAGES, CAPTIONS, IMAGE_OF, texts=TEXTS, table=TABLE), judgement)


def test_the_frame_has_the_users_columns_and_the_row_order(audit):
    pandas = pytest.importorskip("pandas")
    frame, found = audit.to_frame(), audit.judgement
    assert list(frame.columns)[: len(OF_USER)] == OF_USER and len(frame) == len(audit) == PAIRS
    assert frame["row"].tolist() == frame.index.tolist() == list(range(PAIRS))
    for name in ("posterior", "fdr", "information", "image_of", "fold"):
        np.testing.assert_array_equal(frame[name], getattr(found, name))
    assert frame["caption"].tolist() == TEXTS and frame["uid"].tolist() == TABLE["uid"].tolist()
    assert frame["note"].isna().tolist() == [note is None for note in TABLE["note"]]
    np.testing.assert_array_equal(frame["price"], TABLE["price"])
    assert set(frame["table_kind"]) == {"mine"} and "matched" in set(frame["kind"])
    has_proposal = found.proposal[:, 0] >= 0
    assert frame["proposal_1"].notna().tolist() == has_proposal.tolist() and has_proposal.any()
    assert pandas.api.types.is_integer_dtype(frame["proposal_1"])


def test_the_worst_pairs_are_rows_of_the_frame(audit):
    pandas = pytest.importorskip("pandas")
    worst = audit.worst(7)
    pandas.testing.assert_frame_equal(worst, audit.to_frame().loc[audit.judgement.order[:7]])
    assert worst["posterior"].is_monotonic_decreasing and TRUTH[worst["row"]].mean() > 0.8
    assert len(audit.worst(0)) == 0 and len(audit.worst(10**6)) == PAIRS


def test_rates_by_a_column(audit):
    bad, good = audit.by("source")
    assert (bad.value, good.value) == ("bad", "good") and bad.differs and good.differs
    share = TRUTH[np.array(TABLE["source"]) == "bad"].mean()
    assert bad.low <= share <= bad.high and good.low == 0 and good.high < bad.low
    assert {each.unreliable_reason != "" for each in audit.by("uid")} == {True}
    with pytest.raises(DataError, match=r"^by: found 'shop', expected .*: source, uid, price"):
        audit.by("shop")


def test_no_rate_is_told_without_one_of_all_pairs(audit):
    unclear = replace(audit.judgement, unreliable_reason="the vectors are weak")
    with pytest.raises(DataError, match="cannot be told: the vectors are weak"):
        replace(audit, judgement=unclear).by("source")


def test_kept_pairs_can_be_taken(audit):
    kept = audit.kept()
    assert kept.dtype == np.int64 and not TRUTH[kept].mean() > 0.05
    suspicious = np.setdiff1d(np.arange(PAIRS), kept)
    assert SWAPPED_CAPTION in audit.judgement.kind[suspicious]
    pairs = audit.pairs.take(kept)
    assert pairs.texts == [TEXTS[row] for row in kept]
    np.testing.assert_array_equal(pairs.columns["uid"], TABLE["uid"][kept])
    assert audit.rate is audit.judgement.rate and audit.truth is None


@pytest.mark.parametrize("table", ["pairs.parquet", "pairs.csv"])
def test_an_audit_is_read_as_it_was_written(audit, tmp_path, monkeypatch, table):
    pandas = pytest.importorskip("pandas")
    if table.endswith("csv"):
        monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    else:
        pytest.importorskip("pyarrow")
    assert audit.write(tmp_path / "out") == tmp_path / "out" and (tmp_path / "out" / table).exists()
    opened = open_audit(str(tmp_path / "out"))
    found, expected = opened.to_frame(), audit.to_frame()
    if table.endswith("csv"):  # numbers of the user come back as text
        numbers = ["uid", "price", "table_proposal_1"]
        np.testing.assert_allclose(found["price"].astype(float), expected["price"], 1e-5)
        assert found["uid"].astype(int).tolist() == expected["uid"].tolist()
        found, expected = found.drop(columns=numbers), expected.drop(columns=numbers)
    pandas.testing.assert_frame_equal(found, expected)
    pandas.testing.assert_frame_equal(
        opened.worst(5)[list(found.columns)], audit.worst(5)[list(found.columns)]
    )
    assert opened.by("source") == audit.by("source")
    np.testing.assert_array_equal(opened.kept(), audit.kept())
    assert (str(opened), opened.rate) == (str(audit), audit.rate)
    assert opened.pairs.image_ids == audit.pairs.image_ids and opened.settings == audit.settings
    assert opened.pairs.fingerprint == audit.pairs.fingerprint
    assert opened._repr_html_() == audit._repr_html_()
    with pytest.raises(ConfigError, match="out: "):
        audit.write(tmp_path / "out")


def test_without_texts_an_audit_is_read_as_well(audit, tmp_path):
    pytest.importorskip("pandas")
    bare = replace(audit, pairs=Pairs.from_arrays(IMAGES, CAPTIONS, IMAGE_OF))
    bare.write(tmp_path / "out")
    opened = open_audit(tmp_path / "out")
    assert opened.pairs.texts is None and opened.to_frame().equals(bare.to_frame())


@pytest.mark.parametrize("table", ["pairs.parquet", "pairs.csv"])
def test_columns_of_any_name_and_kind_are_read_as_they_were_given(
    audit, tmp_path, monkeypatch, table
):
    pandas = pytest.importorskip("pandas")
    if table.endswith("csv"):
        monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    else:
        pytest.importorskip("pyarrow")
    gap = np.arange(PAIRS) == 3
    columns = {
        **{"fold": np.arange(PAIRS), "table_fold": 2 * np.arange(PAIRS), "table_x": ["x"] * PAIRS},
        **{"exact": 1_700_000_000.25 + np.arange(PAIRS), "caption_id": np.arange(PAIRS) + 1000},
        "day": np.where(gap, np.datetime64("NaT"), np.datetime64("2026-01-01")),
        "count": pandas.array(np.where(gap, None, 2**60 + np.arange(PAIRS)), "Int64"),
        "shop": pandas.array(np.where(gap, None, "a"), "string"),
        "cells": [np.arange(2)] * PAIRS,
    }
    texts = ["", *TEXTS[1:-1], ""]
    pairs = Pairs.from_arrays(IMAGES, CAPTIONS, IMAGE_OF, texts=texts, table=columns)
    given = replace(audit, pairs=replace(pairs, caption_ids=[f"c{x}" for x in range(PAIRS)]))
    given.write(tmp_path / "out")
    opened = open_audit(tmp_path / "out").pairs
    assert list(opened.columns) == list(columns) == list(given.pairs.columns)
    for name, values in given.pairs.columns.items():
        known, found = (~pandas.isna(each) for each in (values, opened.columns[name]))
        assert found.tolist() == known.tolist()
        if not table.endswith("csv"):  # all columns of a CSV are texts
            values = values.astype(opened.columns[name].dtype)
        assert list(map(str, opened.columns[name][known])) == list(map(str, values[known]))
    assert (opened.texts, opened.caption_ids) == (texts, given.pairs.caption_ids)
    assert opened.fingerprint == given.pairs.fingerprint
    with pytest.raises(DataError, match="found pairs without vectors"):
        audit_pairs(opened)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = {
    "no directory": ("", lambda path: path.rename(path.with_name("elsewhere"))),
    "no judgement": ("judgement.npz", lambda path: path.unlink()),
    "a cut judgement": ("judgement.npz", cut),
    "no report": ("report.json", lambda path: path.unlink()),
    "a cut report": ("report.json", cut),
    "another report": ("report.json", lambda path: path.write_text("{}")),
    "no table": ("pairs.csv", lambda path: path.unlink()),
    "a cut table": ("pairs.csv", cut),
    "an empty table": ("pairs.csv", lambda path: path.write_bytes(b"")),
    "a binary table": ("pairs.csv", lambda path: path.write_bytes(b"row\n\xff\xfe\0")),
    "a damaged parquet": ("pairs.parquet", lambda path: path.write_bytes(b"PAR1")),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_directory_is_one_clear_error(audit, tmp_path, monkeypatch, case):
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    audit.write(tmp_path / "out")
    monkeypatch.undo()
    name, damage = DAMAGES[case]
    damage(tmp_path / "out" / name)
    with pytest.raises(DataError, match="out"):
        open_audit(tmp_path / "out")


def test_without_pandas_one_line_says_what_to_install(audit, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (audit.to_frame, audit.worst):
        with pytest.raises(ConfigError, match=r"requires pandas: pip install pandas$"):
            ask()


def test_an_audit_prints_its_verdict(audit):
    assert str(audit) == repr(audit) == "\n".join(audit.verdict())
    html = audit._repr_html_()
    assert all(escape_text(line) in html for line in audit.verdict())
    rows = audit.judgement.order[:10]
    ids = audit.judgement.image_of
    places = [html.index(f"<td>{ids[row]}</td><td>{TEXTS[row]}</td>") for row in rows]
    assert html.count("<tr>") == 11 and places == sorted(places) and "<img" not in html


def test_captions_cannot_add_to_the_html(audit):
    hostile = "</td><script>alert('x')</script>"
    worst = int(audit.judgement.order[0])
    texts = [*TEXTS[:worst], hostile, *TEXTS[worst + 1 :]]
    ids = [hostile] * len(IMAGES)
    html = replace(audit, pairs=replace(audit.pairs, texts=texts, ids=ids))._repr_html_()
    assert "<script" not in html and html.count("&lt;script&gt;") >= 11


def test_pictures_are_shown(audit, tmp_path):
    Image.new("RGB", (400, 200), "red").save(tmp_path / "one.png")
    pictures = [Image.new("RGB", (8, 8), (k, 0, 0)) for k in range(len(IMAGES))]
    [first, second, *_] = dict.fromkeys(IMAGE_OF[audit.judgement.order[:10]].tolist())
    pictures[first], pictures[second] = (tmp_path / "one.png").read_bytes(), "missing.png"
    html = replace(audit, pairs=replace(audit.pairs, pictures=pictures))._repr_html_()
    hidden = (IMAGE_OF[audit.judgement.order[:10]] == second).sum()
    assert html.count('<img src="data:image/') == 10 - hidden
