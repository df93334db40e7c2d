"""`l2rm pairs` on tiny runs: with a split by loss, by cross-fitting, and without any split."""

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from l2rm_jax.crossfit import Judgement
from l2rm_jax.retriever.pairs import list_pairs
from l2rm_jax.retriever.pairs_kept import give_verdict, read_kept

from l2rm_jax.data.batches import scoring_batches
from l2rm_jax.data.loading import load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import CheckpointError, ConfigError, DataError
from l2rm_jax.methods.cost import cost, resize_cost
from l2rm_jax.retriever import pairs_proposals
from l2rm_jax.run.config_file import read_config, with_changes, write_config
from l2rm_jax.run.judgement import judge_data, leave_out_fold
from l2rm_jax.run.loss_split import SPLIT_FILE, last_split
from l2rm_jax.run.opening import open_run
from l2rm_jax.train import train
from tests.tiny import tiny_config

pytestmark = pytest.mark.slow  # runs are trained first

WORDS = 8  # at which a tiny run clips its captions


@pytest.fixture(scope="module", autouse=True)
def cheap():
    """One device, for which other tests compile the same programs; a judgement at random."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("l2rm_jax.retriever.pairs.Replicas", one_device)
        patch.setattr("l2rm_jax.run.judgement.judge_pairs", judge_at_random)
        yield


def judge_at_random(images, captions, pair_image, folds, *, level=None) -> Judgement:
    posterior, information = np.random.default_rng(0).uniform(size=(2, len(pair_image)))
    return Judgement(level or "pair", information, posterior, 0.4, 0.3, 0.5, 0.9)


def one_device() -> Replicas:
    return Replicas(jax.devices()[:1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """Work directories of a run of `l2rm`: as it was in its second epoch of three, and finished."""
    stopped, finished = (tmp_path_factory.mktemp("runs") / name for name in ("stopped", "finished"))

    def copy(run, epochs: int) -> None:
        if epochs == 2:
            run.checkpoints.wait()
            shutil.copytree(finished, stopped)

    train(tiny_config(), finished, one_device(), on_epoch=copy)
    return stopped, finished


@pytest.fixture(scope="module")
def stopped(runs) -> Path:
    return runs[0]


@pytest.fixture(scope="module")
def finished(runs) -> Path:
    return runs[1]


def propose_nothing(run, pairs, doubted) -> pairs_proposals.Proposals:
    """In place of `propose`, in tests that look at other columns."""
    return pairs_proposals.Proposals(np.full(len(pairs), -1), np.zeros(len(pairs)))


def table(workdir: Path, out: Path) -> list[dict[str, str]]:
    list_pairs(workdir, out)
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers(rows: list[dict[str, str]], name: str) -> np.ndarray:
    return np.array([float(row[name] or "nan") for row in rows])


def naive_losses(workdir: Path, epoch: int) -> np.ndarray:
    """Loss of each pair by the best model, pair by pair; `epoch` sets the batches."""
    config = read_config(workdir)
    data = load_data(config.data, config.mismatch, workdir=workdir)
    clipped = replace(data.train, tokens=[words[:WORDS] for words in data.train.tokens])
    with open_run(config, data, workdir, one_device()) as run:
        run.restore_best()
        sims = run.score(clipped)  # [images, captions]
    losses, image = np.empty(len(clipped)), clipped.stored_image
    settings = {"batch_size": config.train.batch_size, "seed": config.seed, "epoch": epoch}
    for _, rows in scoring_batches(clipped, **settings):
        for k in rows:
            others = [j for j in rows if j != k]
            hinges = [config.loss.margin + sims[image[k], j] - sims[image[k], k] for j in others]
            hinges += [config.loss.margin + sims[image[j], k] - sims[image[k], k] for j in others]
            losses[k] = sum(max(0.0, hinge) for hinge in hinges) / len(rows)
    return losses


def files(workdir: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}


def test_a_stopped_run_has_the_split_that_was_made_by_its_best_model(
    stopped, tmp_path, monkeypatch
):
    """The split before the second epoch is by the model after the first, which is the best."""
    monkeypatch.setattr("l2rm_jax.retriever.pairs.propose", propose_nothing)
    before = files(stopped)
    rows = table(stopped, tmp_path / "pairs.csv")
    assert files(stopped) == before
    assert [int(row["row"]) for row in rows] == list(range(100))
    np.testing.assert_allclose(numbers(rows, "loss"), naive_losses(stopped, 1), rtol=1e-4)
    posterior = numbers(rows, "mismatched_posterior")
    order = np.argsort(numbers(rows, "loss"))
    assert (np.diff(posterior[order]) > -1e-6).all() and len(set(posterior)) > 50
    called = np.array([row["called"] for row in rows])
    np.testing.assert_array_equal(called, np.where(posterior > 0.5, "mismatched", "matched"))
    assert {row["judged_by"] for row in rows} == {"loss"}
    assert not any(row[name] for row in rows for name in ("image_id", "dropped", "fold", "level"))
    index = np.load(stopped / "mismatch_index.npy")
    assert [int(row["image_row"]) for row in rows] == index.tolist()
    truth = ["true" if image != k // 5 else "false" for k, image in enumerate(index)]
    assert [row["mismatched_on_purpose"] for row in rows] == truth


def test_a_finished_run_has_its_last_split_and_proposals(finished, tmp_path):
    with np.load(finished / SPLIT_FILE) as kept:
        assert kept["epoch"] == 3
        rows = table(finished, tmp_path / "pairs.csv")
        np.testing.assert_allclose(numbers(rows, "loss"), kept["loss"], rtol=1e-5)
        called = [row["called"] == "matched" for row in rows]
        np.testing.assert_array_equal(called, kept["called_matched"])
    proposed = [row for row in rows if row["proposed_row"]]
    assert len(proposed) > 10
    for row in proposed:
        other = rows[int(row["proposed_row"])]
        assert row["called"] == other["called"] == "mismatched"
        assert row["proposed_caption"] == other["caption"]
        assert row["image_row"] != other["image_row"]
        assert 0.01 <= float(row["proposed_share"]) <= 1
    twice = [(row["image_row"], row["proposed_row"]) for row in proposed]
    assert len(set(twice)) == len(twice)
    for image in {row["image_row"] for row in proposed}:  # the best first
        shares = [float(row["proposed_share"]) for row in proposed if row["image_row"] == image]
        assert shares == sorted(shares, reverse=True)


def test_costs_are_those_of_the_run_and_groups_hold_every_image(finished, monkeypatch):
    """With plans of 400 entries, the images are divided into groups."""
    config = read_config(finished)
    data = load_data(config.data, config.mismatch, workdir=finished)
    doubted, seen = np.arange(5, 95), []

    def transport(costs, mass, allowed, share, epsilon, shape):
        seen.append((costs, mass))
        assert costs.shape <= tuple(shape) and (allowed.sum(axis=1) > 0).all()
        return np.eye(*costs.shape)

    monkeypatch.setattr(pairs_proposals, "transport", transport)
    images = np.unique(data.train.stored_image[doubted])
    chosen = data.train.cross(images, doubted)
    with open_run(config, data, finished, one_device()) as run:
        run.restore_best()
        learned = resize_cost(run.own_state["cost"], len(doubted))
        expected = {"learned": cost(learned, run.score(chosen)), "cosine": 1 - cosines(run, chosen)}
        for kind, costs in expected.items():
            run.config = with_changes(config, {"l2rm.cost": kind})
            seen.clear()
            pairs_proposals.propose(run, data.train, doubted, entries=2000)
            [(found, mass)] = seen
            np.testing.assert_allclose(found, costs, atol=2e-5)
            assert mass.sum() == len(doubted)
        seen.clear()
        proposals = pairs_proposals.propose(run, data.train, doubted, entries=400)
    assert len(seen) == math.ceil(math.sqrt(1.5 * found.size / 400))
    assert sum(len(mass) for _, mass in seen) == len(images)
    assert sum(costs.shape[1] for costs, _ in seen) == len(doubted)
    assert np.isin(proposals.caption[doubted], [-1, *doubted]).all()


def cosines(run, pairs) -> np.ndarray:
    """Cosines of mean regions with mean words of captions clipped as in training."""
    tokens = np.zeros((len(pairs), WORDS), np.int32)
    for row, words in zip(tokens, pairs.tokens, strict=True):
        row[: len(words[:WORDS])] = words[:WORDS]
    lengths = np.minimum(pairs.lengths, WORDS)
    images = pairs.images.rows(np.arange(len(pairs.images)))
    state = run.replicas.unreplicate(run.state)
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    model = run.model.clone(axis_name=None)
    regions = model.apply(variables, images, method="encode_images").regions
    words = model.apply(variables, tokens, lengths, method="encode_captions").words
    means = [np.asarray(x).sum(axis=1) for x in (regions, words)]
    means = [mean / np.linalg.norm(mean, axis=1, keepdims=True) for mean in means]
    return means[0] @ means[1].T


def test_a_run_split_by_cross_fitting(stopped, tmp_path, monkeypatch):
    """The run of the other tests, as if it had been split in this way: its model stays the same."""
    workdir, config = tmp_path / "run", tiny_config()
    config.split.by, config.split.folds = "crossfit", 3
    shutil.copytree(stopped, workdir)
    (workdir / SPLIT_FILE).unlink()
    write_config(workdir, config)
    judge_data(config, load_data(config.data, config.mismatch, workdir=workdir), workdir)
    monkeypatch.setattr("l2rm_jax.retriever.pairs.propose", propose_nothing)
    rows = table(workdir, tmp_path / "pairs.csv")
    with np.load(workdir / "crossfit.npz") as file:
        expected = 1 - file["posterior"]
        assert {row["level"] for row in rows} == {str(file["level"])}
        assert [int(row["fold"]) for row in rows] == file["fold"].tolist()
        np.testing.assert_allclose(numbers(rows, "information"), file["information"], rtol=1e-4)
    np.testing.assert_allclose(numbers(rows, "mismatched_posterior"), expected, rtol=1e-4)
    called = [row["called"] for row in rows]
    assert called == np.where(expected > 0.5, "mismatched", "matched").tolist()
    assert {row["judged_by"] for row in rows} == {"crossfit"}
    assert np.isfinite(numbers(rows, "loss")).all() and len({row["loss"] for row in rows}) > 90


def test_a_method_without_a_split_and_pairs_that_a_filter_dropped(tmp_path):
    """Nothing is mismatched on purpose, so the truth counts as unknown."""
    scores = tmp_path / "scores.npy"
    np.save(scores, np.arange(100.0) % 10)
    config = tiny_config(method="triplet", warmup_epochs=1, epochs=0)
    config.mismatch.rate = 0.0
    changes = {"data.filter": "score", "data.filter_scores": str(scores), "data.filter_value": 3.0}
    config = with_changes(config, changes)
    train(config, tmp_path / "run", one_device())
    rows = table(tmp_path / "run", tmp_path / "pairs.csv")
    expected = ["filter" if k % 10 < 3 else "" for k in range(100)]
    assert [row["dropped"] for row in rows] == expected
    unfiltered = with_changes(
        config, {"data.filter": "none", "data.filter_scores": "", "data.filter_value": 0.0}
    )
    write_config(tmp_path / "run", unfiltered)
    np.testing.assert_allclose(numbers(rows, "loss"), naive_losses(tmp_path / "run", 0), rtol=1e-4)
    names = ("mismatched_posterior", "judged_by", "called", "mismatched_on_purpose", "proposed_row")
    assert not any(row[name] for row in rows for name in names)


def test_the_flags_of_decl_are_shown_for_the_pairs_that_it_trains_on(tmp_path):
    """Its state has a number for each of these, not for each pair of the table."""
    scores = tmp_path / "scores.npy"
    np.save(scores, np.arange(100.0) % 10)
    changes = {"data.filter": "score", "data.filter_scores": str(scores), "data.filter_value": 3.0}
    config = tiny_config(method="decl", warmup_epochs=1, epochs=1, checkpoint_steps=100)
    own, found, workdir = [], [], tmp_path / "run"

    def list_now(run, epochs: int) -> None:
        if epochs == 2:  # the first one is saved, this one not yet
            own.append(run.own_state["pairs"]["called_matched"])
            found.append(table(workdir, tmp_path / "warmup.csv"))

    train(with_changes(config, changes), workdir, one_device(), on_epoch=list_now)
    found.append(table(workdir, tmp_path / "pairs.csv"))
    warmup, last = ([row["called"] for row in rows] for rows in found)
    assert set(warmup) == {""}  # nothing is split yet
    kept = np.flatnonzero(np.arange(100) % 10 >= 3)
    expected = np.full(100, "", object)
    expected[kept] = np.where(own[0] == 1, "matched", "mismatched")
    assert last == expected.tolist() and len(set(last)) == 3
    assert not any(row[name] for row in found[1] for name in ("mismatched_posterior", "judged_by"))
    assert all(row["loss"] for row in found[1])


def test_what_is_known_of_pairs_that_are_left_out_or_filtered(tmp_path):
    """The rows are those of the run's own data, which are read in another way."""
    config = tiny_config()
    config.split.folds, config.split.held_out = 4, 1
    config.data.filter, config.data.filter_value = "crossfit", 0.5
    data = load_data(config.data, config.mismatch, workdir=None)
    outside = leave_out_fold(config.split, data)
    used, _ = judge_data(config, outside, tmp_path)
    kept = read_kept(config, data.train, tmp_path)
    assert [data.train.captions[row] for row in kept.trained] == used.train.captions
    assert [data.train.captions[row] for row in kept.judged] == outside.train.captions
    counts = {name: np.count_nonzero(kept.dropped == name) for name in ("", "filter", "held_out")}
    assert counts[""] == len(used.train) and sum(counts.values()) == 100
    assert counts["held_out"] == 100 - len(outside.train) > 0 and counts["filter"] > 0
    verdict = give_verdict(kept, splits_by_crossfit=False)
    known = verdict.judged_by == "crossfit"
    np.testing.assert_array_equal(np.flatnonzero(known), kept.judged)
    filtered = kept.dropped == "filter"
    assert verdict.mismatched_posterior[filtered].min() >= 0.5 and not (verdict.called != "").any()


def test_errors(finished, tmp_path):
    def refused(error: type, message: str, workdir=finished, out="a.csv", **changes):
        with pytest.raises(error, match=message) as caught:
            list_pairs(workdir, tmp_path / out, changes)
        return caught.value.hint

    refused(ConfigError, r"a\.txt, expected a name that ends in \.csv or \.parquet", out="a.txt")
    refused(ConfigError, r"config\.seed: .* only data\.path", **{"seed": 3})
    write_config(tmp_path / "new", tiny_config())
    hint = refused(CheckpointError, "new: no epoch is finished yet", workdir=tmp_path / "new")
    assert hint == f"l2rm --workdir={tmp_path / 'new'}"
    moved = tiny_config()
    moved.data.path, moved.data.name = str(tmp_path / "gone"), "mine"
    write_config(tmp_path / "moved", moved)
    hint = refused(ConfigError, "where no directory is now", workdir=tmp_path / "moved")
    assert hint.startswith("l2rm pairs --workdir=") and hint.endswith("--data=DIR")
    (tmp_path / "taken.csv").write_text("mine")
    refused(ConfigError, "taken.csv: already exists", out="taken.csv")
    assert (tmp_path / "taken.csv").read_text() == "mine"
    assert not list(tmp_path.glob("*unfinished"))


def test_a_split_of_other_pairs_is_refused(stopped, tmp_path):
    with pytest.raises(DataError, match="split of 100 other pairs, expected the 99"):
        last_split(stopped, np.zeros(99, int))
    assert last_split(tmp_path, np.zeros(99, int)) is None
    (tmp_path / SPLIT_FILE).write_bytes((stopped / SPLIT_FILE).read_bytes()[:-40])
    with pytest.raises(DataError, match="not a split of pairs"):
        last_split(tmp_path, np.zeros(99, int))
