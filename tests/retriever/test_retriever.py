"""Loaded models: encodings, scores and search results."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.errors import CheckpointError, ConfigError, DataError
from l2rm_jax.retriever import Retriever
from l2rm_jax.retriever import retriever as retriever_module
from l2rm_jax.run.config_file import write_config
from tests.retriever.runs import IMAGES, make_run
from tests.tiny import tiny_config

HEADS = ("vse", "pem", "saf")
pytestmark = pytest.mark.slow  # three runs are made first


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return by head: the directory of a run, its evaluation scores, and the test split."""
    root = tmp_path_factory.mktemp("runs")
    return {head: (root / head, *make_run(root / head, head)) for head in HEADS}


@pytest.fixture(scope="module")
def retrievers(runs):
    return {head: l2rm_jax.load(workdir) for head, (workdir, _, _) in runs.items()}


@pytest.fixture(scope="module")
def encoded(runs, retrievers):
    """Return by head: the encoded images and captions of the test split."""
    return {
        head: (
            retrievers[head].encode_images(test.images.rows(np.arange(IMAGES))),
            retrievers[head].encode_captions(test.captions),
        )
        for head, (_, _, test) in runs.items()
    }


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Columns of the k highest scores of each row."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("head", HEADS)
def test_similarities_are_those_of_evaluation_bit_for_bit(head, runs, retrievers, encoded):
    sims = retrievers[head].similarity(*encoded[head])
    np.testing.assert_array_equal(sims, runs[head][1])
    few = retrievers[head].encode_captions(runs[head][2].captions[5:8])
    np.testing.assert_allclose(
        retrievers[head].similarity(encoded[head][0][[30, 2]], few), sims[[30, 2], 5:8], atol=1e-5
    )


@pytest.mark.parametrize("head", HEADS)
def test_search_finds_the_highest_similarities(head, runs, retrievers, encoded):
    images, captions = encoded[head]
    sims = runs[head][1]
    hits = retrievers[head].search(captions, images, top_k=4)
    rows = best(sims.T, 4)
    np.testing.assert_array_equal(hits.rows, rows)
    np.testing.assert_allclose(hits.scores, np.take_along_axis(sims.T, rows, 1), atol=1e-5)
    hits = retrievers[head].search(images[:2], captions, top_k=1000)  # cut to the gallery
    np.testing.assert_array_equal(np.sort(hits.rows), np.tile(np.arange(5 * IMAGES), (2, 1)))
    assert np.diff(np.take_along_axis(sims[:2], hits.rows, axis=1)).max() < 1e-5
    assert hits[0][0].text == runs[head][2].captions[hits.rows[0, 0]]


def test_a_split_on_disk_and_texts_are_encoded_for_the_user(runs, retrievers):
    hits = retrievers["vse"].search("a red ball", "scenes:test", top_k=2)
    assert hits[:1] == hits[-1:] == [hits[0]] and hits[1:] == []
    rank, row, name, score, text = hits[0][1]
    assert (rank, name) == (2, str(row))
    own = runs["vse"][2].captions[5 * row : 5 * row + 5]
    asked, words = {"a", "red", "ball"}, [set(caption.split()) for caption in own]
    shared = [len(asked & each) / len(asked | each) for each in words]
    assert text == own[np.argmax(shared)]  # the stored caption most like the query
    assert score == pytest.approx(float(hits.scores[0, 1]), abs=1e-6)
    assert str(hits).splitlines()[0] == "a red ball"
    assert json.loads(hits.to_json())[0]["hits"][1]["row"] == row


@pytest.mark.parametrize("head", HEADS)
def test_encodings_survive_a_file(head, retrievers, encoded, tmp_path):
    for number, encodings in enumerate(encoded[head]):
        encodings.save(tmp_path / str(number))
    images, captions = (retrievers[head].open(tmp_path / str(number)) for number in range(2))
    sims = retrievers[head].similarity(images, captions)
    np.testing.assert_array_equal(sims, retrievers[head].similarity(*encoded[head]))
    assert list(captions.texts) == list(encoded[head][1].texts)
    other = retrievers[HEADS[HEADS.index(head) - 1]]
    with pytest.raises(ConfigError, match=str(tmp_path)):
        other.open(tmp_path / "0")
    with pytest.raises(ConfigError, match=str(tmp_path / "1")):
        images.save(tmp_path / "1")
    with pytest.raises(DataError, match=str(tmp_path)):
        retrievers[head].open(tmp_path)


@pytest.mark.parametrize("head", ["vse", "saf"])
def test_a_damaged_directory_is_refused(head, retrievers, encoded, tmp_path):
    for number, encodings in enumerate(encoded[head]):
        for name, damage in (("missing", Path.unlink), ("short", drop_last_row)):
            path = tmp_path / f"{number}-{name}"
            encodings.save(path)
            damage(max(path.glob("*.npy")))
            with pytest.raises(DataError, match=str(path)):
                retrievers[head].open(path)


def drop_last_row(file: Path) -> None:
    np.save(file, np.load(file)[:-1])


def test_an_ensemble_is_the_mean(runs, tmp_path):
    make_run(tmp_path / "other", "vse", seed=1, score=False)
    both = [runs["vse"][0], tmp_path / "other"]
    retriever = l2rm_jax.load(both)
    images = retriever.encode_images("scenes:test")
    captions = retriever.encode_captions(runs["vse"][2].captions)
    sims = retriever.similarity(images, captions)
    own = l2rm_jax.load(both[1])
    second = own.similarity(
        own.encode_images("scenes:test"), own.encode_captions(runs["vse"][2].captions)
    )
    np.testing.assert_allclose(sims, (runs["vse"][1] + second) / 2, atol=1e-6)
    np.testing.assert_allclose(images.vectors() @ captions.vectors().T, sims, atol=1e-6)
    assert images.metric == "ip"
    np.testing.assert_array_equal(retriever.search(captions, images, top_k=3).rows, best(sims.T, 3))


def test_vectors_reproduce_the_scores(runs, encoded):
    images, captions = (x.vectors() for x in encoded["vse"])
    np.testing.assert_allclose(images @ captions.T, runs["vse"][1], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, atol=1e-5)
    images, captions = encoded["pem"]
    assert (images.metric, encoded["saf"][0].metric) == ("l2sq", None)
    squared = ((images.vectors()[:, None] - captions.vectors()) ** 2).sum(axis=2)
    np.testing.assert_allclose(-np.sqrt(squared), runs["pem"][1], atol=1e-3)
    with pytest.raises(ConfigError, match="saf"):
        encoded["saf"][0].vectors()


def test_a_proposer_leaves_the_rest_out(runs, retrievers):
    test = runs["saf"][2]
    slow, fast = retrievers["saf"], retrievers["vse"]
    images = slow.encode_images("scenes:test")
    captions = slow.encode_captions(test.captions)
    for queries, gallery, slow_sims, fast_sims in (
        (captions, images, runs["saf"][1].T, runs["vse"][1].T),
        (images, captions, runs["saf"][1], runs["vse"][1]),
    ):
        hits = slow.search(queries, gallery, 3, proposer=fast, candidates=6)
        proposed = best(fast_sims, 6)
        own = np.take_along_axis(slow_sims, proposed, axis=1)
        expected = np.take_along_axis(proposed, best(own, 3), axis=1)
        np.testing.assert_array_equal(hits.rows, expected)
    with pytest.raises(ConfigError, match="candidates: found 2"):
        slow.search(captions, images, 3, proposer=fast, candidates=2)
    with pytest.raises(ConfigError, match="saf"):
        fast.search("a ball", "scenes:test", proposer=slow)


def test_texts_are_encoded_for_a_proposer_that_takes_vectors(retrievers, monkeypatch):
    vectors = RegionFeatures.from_array(np.ones((1, 2, 8)), "captions", vector="word")
    monkeypatch.setattr(retriever_module, "encode_texts", lambda *_: vectors)
    network = SimpleNamespace(
        name="V",
        head="vse",
        metric="ip",
        fingerprint="v",
        vocabulary=None,
        has_alignment=False,
        tokens_of=lambda tokens: tokens,
        encode_images=lambda images, done: np.eye(len(images), 4, dtype=np.float32),
        encode_captions=lambda tokens, done: np.eye(1, 4, 2, dtype=np.float32),
    )
    fast = Retriever([network], retrievers["saf"].data_config, {"name": "an encoder"})
    images = retrievers["saf"].encode_images(zeros(4, 12, 64))
    hits = retrievers["saf"].search("a ball", images, 1, proposer=fast, candidates=1)
    assert hits.rows.tolist() == [[2]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r, i, c: r.encode_images(zeros(2, 12, 63)), "12 regions x 63 features"),
        (lambda r, i, c: r.encode_images(zeros(0, 12, 64)), "rows"),
        (lambda r, i, c: r.encode_images(zeros(1, 12, 64) + np.nan), "row 0"),
        (lambda r, i, c: r.encode_images("nowhere:test"), "nowhere"),
        (lambda r, i, c: r.encode_images("scenes:tset"), "train,dev,test"),
        (lambda r, i, c: r.encode_images(zeros(2, 12, 64), ids=["a"]), "ids"),
        (lambda r, i, c: r.encode_captions([]), "captions"),
        (lambda r, i, c: r.encode_captions(["a ball", "  "]), r"number 1\b"),
        (lambda r, i, c: r.encode_captions([3]), r"captions: found int64 \[1\], expected float"),
        (lambda r, i, c: r.encode_captions(zeros(1, 4)), "vectors"),
        (lambda r, i, c: r.search("", i), r"number 0\b"),
        (lambda r, i, c: r.search(c, i, 2.0), "top_k: found 2.0"),
        (lambda r, i, c: r.search(i, i), "images"),
        (lambda r, i, c: r.search(c, i[:0]), "images"),
        (lambda r, i, c: r.similarity(c, i), "captions"),
    ],
)
def test_bad_input_is_one_clear_line(call, message, retrievers, encoded):
    with pytest.raises((ConfigError, DataError), match=message):
        call(retrievers["vse"], *encoded["vse"])


def test_regions_that_a_head_counts_are_checked(retrievers):
    with pytest.raises(DataError, match="found 11 regions x 64 features"):
        retrievers["saf"].encode_images(zeros(2, 11, 64))


def test_only_what_was_trained_is_loaded(runs, tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        l2rm_jax.load(tmp_path)
    write_config(tmp_path, tiny_config())
    with pytest.raises(CheckpointError) as error:
        l2rm_jax.load(tmp_path)
    assert error.value.hint == f"l2rm --workdir={tmp_path}"
    for nothing in (None, []):
        with pytest.raises(ConfigError, match="load"):
            l2rm_jax.load(nothing)
    with pytest.raises(ConfigError, match="checkpoint: found 'newest'"):
        l2rm_jax.load(runs["vse"][0], checkpoint="newest")
    with pytest.raises(ConfigError, match="vocabulary"):
        l2rm_jax.load(runs["vse"][0], vocabulary="words.json")
    assert "(last)" in repr(l2rm_jax.load(runs["vse"][0], checkpoint="last"))


def test_the_log_of_a_killed_run_ends_in_half_a_line(runs, tmp_path):
    workdir = tmp_path / "killed"
    shutil.copytree(runs["vse"][0], workdir)
    step = max(int(path.name) for path in (workdir / "checkpoints/best").iterdir())
    torn = '{"kind": "epoch", "st'
    record = {"kind": "epoch", "step": step, "epoch": 3, "rsum": 9.5}
    (workdir / "metrics.jsonl").write_text(f"{json.dumps(record)}\n{torn}")
    assert "epoch 3 (best), rSum 9.5" in repr(l2rm_jax.load(workdir))
    (workdir / "metrics.jsonl").write_text(f"{torn}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        l2rm_jax.load(workdir)
