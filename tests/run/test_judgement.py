"""Cross-fitting in a run: the judgement of the training pairs, kept, used and checked."""

import contextlib
import json
import shutil
import threading
from dataclasses import replace

import jax
import numpy as np
import pytest

from l2rm_jax.data.loading import load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.judging import JUDGEMENT_FILE, make_detector
from l2rm_jax.methods import EpochPlan, make_method
from l2rm_jax.models import make_model
from l2rm_jax.run import judgement as judgement_module
from l2rm_jax.run.inputs import check_settings
from l2rm_jax.run.judgement import judge_data
from l2rm_jax.run.sampling import draw_pairs
from l2rm_jax.train import train
from tests.tiny import tiny_config, write_vectors

pytestmark = pytest.mark.usefixtures("few_draws", "shared_programs")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = tiny_config()
    config.data.name = "vectors"
    config.data.path = str(write_vectors(tmp_path_factory.mktemp("data"), train=60))
    config.split.by = "judgement"
    return config


def judge(config, data, workdir):
    """Judge by a detector in closed form."""
    detector = make_detector(config)
    return judge_data(config, data, workdir, lambda *_: contextlib.nullcontext(detector))


@pytest.fixture(scope="module")
def data(config):
    return load_data(config.data, config.mismatch, workdir=None)


@pytest.fixture(scope="module")
def judged(config, data, tmp_path_factory):
    """Work directory with a judgement, the judged data, and the summary."""
    workdir = tmp_path_factory.mktemp("judged")
    return workdir, *judge(config, data, workdir)


def test_a_run_that_does_not_use_it_is_not_judged(config, data, tmp_path):
    plain = config.copy_and_resolve_references()
    plain.split.by = "loss"
    assert judge(plain, data, tmp_path) == (data, None)
    assert not list(tmp_path.iterdir())


def test_the_file_holds_every_pair(judged, data):
    workdir, with_posterior, summary = judged
    posterior = with_posterior.train.posterior
    assert posterior.shape == (300,) and (posterior >= 0).all() and (posterior <= 1).all()
    with np.load(workdir / JUDGEMENT_FILE) as file:
        fold, image = file["fold"], data.train.stored_image
        assert {"posterior", "information", "fold", "kind", "about"} <= set(file)
        assert len(np.unique(fold)) == 5
        assert all(len(np.unique(fold[image == i])) == 1 for i in np.unique(image))
    # The highest posteriors are limited by the number of pairs, which lowers the mean a little.
    assert summary.report["rate"] - 0.02 < posterior.mean() < summary.report["rate"] + 1e-6
    assert 0 <= summary.report["split_precision"] <= 1  # the truth of `scenes` is known
    assert summary.sentence


def test_it_is_computed_once(judged, config, data, monkeypatch):
    workdir, first, summary = judged
    monkeypatch.setattr(judgement_module, "judge_pairs", None)  # may not be called
    again, same = judge(config, data, workdir)
    assert np.array_equal(again.train.posterior, first.train.posterior) and same == summary


def test_other_hosts_wait_for_the_file(judged, config, data, tmp_path, monkeypatch):
    workdir, first, _ = judged
    monkeypatch.setattr(judgement_module, "judge_pairs", None)  # may not be called
    monkeypatch.setattr(judgement_module, "is_primary", lambda: False)
    content = (workdir / JUDGEMENT_FILE).read_bytes()
    write = threading.Timer(0.1, replace_file, [tmp_path / JUDGEMENT_FILE, content])
    write.start()
    waited, _ = judge(config, data, tmp_path)
    assert np.array_equal(waited.train.posterior, first.train.posterior)


def test_the_truth_is_not_used(judged, config, data, tmp_path):
    """Without the truth, every caption seems to be written for the image that it is stored with."""
    workdir, first, _ = judged
    blind = replace(data.train, caption_image=data.train.stored_image)
    hidden, summary = judge(config, replace(data, train=blind), tmp_path)
    assert np.array_equal(hidden.train.posterior, first.train.posterior)
    assert "split_precision" not in summary.report
    assert (tmp_path / JUDGEMENT_FILE).read_bytes() == (workdir / JUDGEMENT_FILE).read_bytes()


def test_the_filter_keeps_pairs_above_a_posterior(judged, config, data):
    workdir, whole, _ = judged
    filtered = config.copy_and_resolve_references()
    filtered.data.filter, filtered.data.filter_value = "judgement", 0.5
    kept, _ = judge(filtered, data, workdir)
    rows = np.flatnonzero(whole.train.posterior < 0.5)
    assert 0 < len(rows) < len(data.train)
    assert kept.train.captions == [data.train.captions[row] for row in rows]
    assert np.array_equal(kept.train.posterior, whole.train.posterior[rows])
    row = kept.mismatch.row()
    assert row["filter"] == "judgement 0.5"
    assert row["filter_kept"] == pytest.approx(len(rows) / len(data.train))
    filtered.data.filter_value = 1.0  # no pair is that sure
    with pytest.raises(DataError, match="300"):
        judge(filtered, replace(data, train=data.train), workdir)


def test_draws_follow_the_posterior(judged):
    train_pairs = judged[1].train
    posterior = np.linspace(0, 1, len(train_pairs))
    pairs = replace(train_pairs, posterior=posterior)
    plan = EpochPlan({"pairs": np.arange(len(pairs))})
    draws = [draw_pairs(plan, pairs, 3, epoch).streams["pairs"] for epoch in range(400)]
    counts = np.bincount(np.concatenate(draws), minlength=len(pairs))
    assert all(len(np.unique(rows)) == len(rows) for rows in draws)
    assert np.abs(counts / 400 - (1 - posterior)).max() < 0.1  # four standard deviations
    assert np.array_equal(draws[7], draw_pairs(plan, pairs, 3, 7).streams["pairs"])
    nothing = replace(pairs, posterior=np.ones(len(pairs)))
    with pytest.raises(DataError, match="300"):
        draw_pairs(plan, nothing, 3, 0)


@pytest.fixture(scope="module")
def rematched(config, data, tmp_path_factory):
    """Config, work directory and training pairs of a run that rematches."""
    config = config.copy_and_resolve_references()
    config.method, config.split.by, config.train.draw = "infonce", "loss", "rematched"
    workdir = tmp_path_factory.mktemp("rematched")
    return config, workdir, judge(config, data, workdir)[0].train


def test_rematched_pairs_are_kept_with_the_judgement(rematched, judged, data, monkeypatch):
    config, workdir, pairs = rematched
    image, caption, weight = pairs.rematched
    assert len(image) == len(caption) == len(weight) > 30
    assert (image != pairs.stored_image[caption]).all()
    assert weight.min() > 0 and (weight <= pairs.posterior[caption] + 1e-6).all()
    content = (workdir / JUDGEMENT_FILE).read_bytes()
    monkeypatch.setattr(judgement_module, "rematch", None)  # may not be called
    again = judge(config, data, workdir)[0].train
    assert all(map(np.array_equal, again.rematched, pairs.rematched))
    assert (workdir / JUDGEMENT_FILE).read_bytes() == content
    assert judged[1].train.rematched is None
    with np.load(judged[0] / JUDGEMENT_FILE) as file:
        assert not any("rematched" in name for name in file)


def test_rematching_does_not_use_the_truth_and_is_added_to_a_file(
    rematched, judged, data, tmp_path, monkeypatch
):
    config, workdir, _ = rematched
    shutil.copy(judged[0] / JUDGEMENT_FILE, tmp_path)
    blind = replace(data.train, caption_image=data.train.stored_image)
    monkeypatch.setattr(judgement_module, "judge_pairs", None)  # the file has the judgement
    judge(config, replace(data, train=blind), tmp_path)
    assert (tmp_path / JUDGEMENT_FILE).read_bytes() == (workdir / JUDGEMENT_FILE).read_bytes()


def test_rematched_pairs_are_drawn_by_their_weight(rematched):
    pairs = rematched[2]
    image, caption, weight = pairs.rematched
    plan = EpochPlan({"pairs": np.arange(len(pairs))})
    draws = [draw_pairs(plan, pairs, 3, epoch).streams["pairs"] for epoch in range(400)]
    rows = np.concatenate(draws)
    images = pairs.stored_image[rows[:, 0]]
    counts = np.zeros((len(pairs.images), len(pairs)))
    np.add.at(counts, (images, rows[:, 1]), 1 / 400)
    expected = np.zeros_like(counts)
    np.add.at(expected, (pairs.stored_image, np.arange(len(pairs))), 1 - pairs.posterior)
    np.add.at(expected, (image, caption), weight)
    assert np.abs(counts - expected).max() < 0.12
    assert not counts[expected == 0].any()
    assert np.array_equal(draws[7], draw_pairs(plan, pairs, 3, 7).streams["pairs"])
    nothing = pairs.rematched._replace(weight=np.zeros(len(weight)))
    nothing = replace(pairs, posterior=np.ones(len(pairs)), rematched=nothing)
    with pytest.raises(DataError, match=r"draw=rematched .*300 "):
        draw_pairs(plan, nothing, 3, 0)


def test_some_of_the_pairs_keep_their_rematched_ones(rematched):
    pairs = rematched[2]
    taken = np.sort(np.random.default_rng(4).choice(len(pairs), 200, replace=False))
    some = pairs.take(taken)
    images = set(pairs.stored_image[taken])
    expected = [
        (i, c, w)
        for i, c, w in zip(*pairs.rematched, strict=True)
        if i in images and c in set(taken)
    ]
    image, caption, weight = some.rematched
    assert len(expected) and [*zip(image, taken[caption], weight, strict=True)] == expected


@pytest.mark.parametrize("name", ["l2rm", "rcsl_nc"])
def test_methods_split_by_it_from_the_first_epoch(name, judged, config):
    named = config.copy_and_resolve_references()
    named.method = name
    method = make_method(make_model(named, vocabulary_size=9), named)
    pairs, rng = judged[1].train, np.random.default_rng(0)
    matched = np.flatnonzero(pairs.posterior <= 0.5)

    def score_pairs(score):
        assert name != "l2rm", "no loss is needed"
        vectors = rng.standard_normal((2, len(pairs), 4))
        return {"hinge": np.zeros(len(pairs)), "images": vectors[0], "captions": vectors[1]}

    [warmup] = method.plan(score_pairs, pairs, 0).streams.values()
    assert np.array_equal(np.unique(warmup), matched)  # the mismatched ones are never learned
    plan = method.plan(score_pairs, pairs, named.train.warmup_epochs)
    assert plan.report["matched"] == len(matched)
    assert plan.report["split_precision"] == judged[2].report["split_precision"]


@pytest.mark.slow
def test_a_run_logs_it_and_draws(config, tmp_path):
    drawn = config.copy_and_resolve_references()
    drawn.method, drawn.model.head, drawn.split.by = "infonce", "vse", "loss"
    drawn.train.draw, drawn.train.warmup_epochs, drawn.train.epochs = "rematched", 0, 1
    drawn.train.batch_size = 20
    train(drawn, tmp_path, Replicas(jax.devices()[:1]))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = records
    assert (first["kind"], first["step"], first["detector"]) == ("judgement", 0, "linear")
    assert first["rate_low"] <= first["rate"] <= first["rate_high"]
    rng = np.random.default_rng([drawn.seed, 0])
    file = np.load(tmp_path / JUDGEMENT_FILE)
    count = np.sum(rng.random(300) < 1 - file["posterior"])
    weight = file["rematched_weight"]
    count += np.sum(rng.random(len(weight)) < weight)
    assert max(record["step"] for record in records) == count // 20 < 300 // 20
    assert last["kind"] in ("epoch", "warning")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "infonce"}, r"split\.by: found 'judgement'"),
        ({"train.draw": "judgement"}, r"train\.draw: found 'judgement'"),
        ({"train.draw": "rematched"}, r"train\.draw: found 'rematched'"),
        ({"train.draw": "odd"}, r"train\.draw: found 'odd'"),
        ({"split.by": "luck", "method": "rcl"}, r"split\.by: found 'luck'"),
    ],
)
def test_errors_of_settings(config, changes, message):
    wrong = config.copy_and_resolve_references()
    wrong.update_from_flattened_dict(changes)
    with pytest.raises(ConfigError, match=message):
        check_settings(wrong)


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut", b"", b"no archive"])
def test_error_for_a_damaged_file(config, data, content, tmp_path):
    (tmp_path / JUDGEMENT_FILE).write_bytes(content)
    with pytest.raises(DataError, match=r"judgement\.npz"):
        judge(config, data, tmp_path)


def test_error_for_the_judgement_of_another_run(judged, config, data):
    """A run that was killed before it wrote its config may have left one."""
    other, pairs = config.copy_and_resolve_references(), data.train
    other.judgement.folds = 4
    with pytest.raises(DataError, match=r"judgement\.folds=5"):
        judge(other, data, judged[0])
    reversed_ = replace(pairs, pairs=replace(pairs.pairs, image_of=pairs.stored_image[::-1].copy()))
    with pytest.raises(DataError, match="pair 0: "):
        judge(config, replace(data, train=reversed_), judged[0])
    fewer = replace(data, train=pairs.take(np.arange(299)))
    with pytest.raises(DataError, match="300 pairs"):
        judge(config, fewer, judged[0])


def test_a_finished_judgement_is_taken_in_place_of_an_own_one(
    judged, config, data, tmp_path, monkeypatch
):
    workdir, first, _ = judged
    monkeypatch.setattr(judgement_module, "judge_pairs", None)  # may not be called
    given = config.copy_and_resolve_references()
    given.judgement.path, given.judgement.folds = str(workdir), 7
    taken, _ = judge(given, data, tmp_path)
    np.testing.assert_array_equal(taken.train.posterior, first.train.posterior)
    assert (tmp_path / JUDGEMENT_FILE).exists()  # the run needs the audit no more
    given.judgement.path = str(tmp_path / "nowhere")
    again, _ = judge(given, data, tmp_path)
    np.testing.assert_array_equal(again.train.posterior, first.train.posterior)
