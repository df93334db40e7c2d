"""Figures of small artificial tables, costs and plans."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_hex

from experiments import figure
from experiments.papers import (
    plot_alignments,
    plot_costs,
    plot_plan,
    plot_rematched,
    plot_rho,
)
from experiments.papers.rematching import Alignment, Rematched
from l2rm_jax import config as defaults
from l2rm_jax.data import scenes
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.text import tokenize
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.train import train
from tests import tiny
from tests.experiments.finished_runs import command


class FakeRun(SimpleNamespace):
    __hash__ = object.__hash__


def rows_of(**columns) -> list[dict]:
    """Return rows of text, as a CSV reader does."""
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    common = {"data": "scenes", "method": "l2rm", "head": "saf", "protocol": "image", "seed": 0}
    common["rate_asked"] = 0.6
    return [{key: str(value) for key, value in (common | row).items()} for row in rows]


def points(axes) -> dict[str, list]:
    """Label -> [(x, mean, deviation)] of each error-bar line."""
    found = {}
    for container in axes.containers:
        line, _, (bars,) = container
        ends = [segment[:, 1] for segment in bars.get_segments()]
        deviations = [round((high - low) / 2, 3) for low, high in ends]
        found[container.get_label()] = [*zip(*line.get_data(), deviations, strict=True)]
    return found


def test_rho_shows_recalls_and_refuses_a_mixture():
    recalls = {f"{way}_r{k}": [10 + k, k] for way in ("i2t", "t2i") for k in (1, 5, 10)}
    recalls = {name: [*values, values[0] + 2] for name, values in recalls.items()}
    rows = rows_of(**{"l2rm.rho": [0.5, 0.1, 0.5], "seed": [0, 0, 1]}, **recalls)
    i2t, t2i = plot_rho.plot(rows).axes
    deviation = round(float(np.std([15, 17], ddof=1)), 3)
    assert points(t2i)["R@5"] == [(0.1, 5, 0.0), (0.5, 16, deviation)]
    assert i2t.get_title() == "image to text"
    with pytest.raises(DataError, match="each rho and seed once"):
        plot_rho.plot([*rows, rows[0]])
    rows[0]["method"] = "triplet"
    with pytest.raises(DataError, match="2 settings"):
        plot_rho.plot(rows)


def test_a_table_without_rho_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "results.csv"
    file.write_text("rsum\n3\n")
    with pytest.raises(SystemExit, match=r"found 1 rows without the column l2rm\.rho"):
        command(monkeypatch, plot_rho, file, "--out", tmp_path)


def test_costs_are_kept_each_epoch_and_drawn_by_truth(tmp_path, monkeypatch):
    sims = jnp.array([[0.9, 0.1], [0.4, 0.2]])
    monkeypatch.setattr(plot_costs.base, "evaluate", lambda model, state, batch: sims)
    learned = {"kernel": -jnp.eye(2), "bias": jnp.array([1.0, 1.5])}
    state = SimpleNamespace(own={"cost": learned})
    config = defaults.get_config("quick")
    config.train.warmup_epochs, config.train.epochs = 1, 2
    train = SimpleNamespace(matched=np.array([True, False]))
    run = FakeRun(
        config=config,
        model=None,
        data=SimpleNamespace(train=train),
        score_pairs=lambda epoch: lambda score: np.asarray(score(state, None)) + epoch,
    )
    hook = plot_costs.recorder(tmp_path)
    for epoch in (1, 2):
        hook(run, epoch, {})
    kept = np.load(figure.epoch_file(tmp_path, "costs", 2))
    np.testing.assert_allclose(kept["cost"], [2.1, 3.3], rtol=1e-6)  # 1 - 0.9 and 1.5 - 0.2
    with pytest.raises(DataError, match=r"epoch3\.npz: no such file"):
        plot_costs.plot(config, tmp_path)
    hook(run, 3, {})
    assert len(plot_costs.plot(config, tmp_path).axes) == 3


@pytest.fixture
def rematched() -> Rematched:
    """Four pictures whose captions moved on by one; one batch of two pairs, queue of three."""
    config = defaults.get_config("quick")
    config.data.scenes_train = 4
    train = load_data(config.data, config.mismatch, workdir=None).train
    stored = np.roll(np.arange(4), 1)[train.caption_image]
    pairs = np.array([0, 16])  # of pictures 0 and 3, stored with pictures 3 and 2
    # The picture of pair 0 gets caption 16, its own; that of pair 16 moves a third of its mass.
    plan = np.array([[0.0, 0.4], [0.16, 0.0], [0.25, 0.2]])
    images = np.array([3, 2, 1])
    dataset = SimpleNamespace(
        caption_image=train.caption_image, stored_image=stored, captions=train.captions
    )
    return Rematched(config, dataset, [Alignment(images, pairs, plan)])


def test_alignments_are_ranked_by_whether_they_move(rematched):
    upper, lower = plot_alignments.plot(rematched).axes
    assert upper.get_title() == "transported: 2 images"  # 0.8 and 0.9 of their mass
    heights = [bar.get_height() for bar in upper.containers[0]]
    np.testing.assert_allclose(heights, np.mean([[1, 0], [25 / 45, 20 / 45]], axis=0), atol=1e-8)
    assert lower.get_title() == "not transported: 1 images"
    np.testing.assert_allclose([b.get_height() for b in lower.containers[0]], [1, 0], atol=1e-8)


def test_rematched_examples_are_marked_by_the_truth(rematched):
    [example] = plot_rematched.transported_pairs(rematched)  # the queue's image has no caption here
    assert example[:3] == (3, 0, 16) and example.share == pytest.approx(1, abs=1e-8)
    upper, lower = plot_rematched.plot(rematched).axes
    captions = rematched.train.captions
    for axes, mark, pair, colour in [
        (upper, "✗ stored:", 0, figure.MISMATCHED),
        (lower, "✓ rematched, 1.00:", 16, figure.MATCHED),
    ]:
        label = axes.xaxis.get_label()
        assert " ".join(label.get_text().split()) == f"{mark} {captions[pair]}"
        assert to_hex(label.get_color()).upper() == colour
    shown = [axes.get_images()[0].get_array() for axes in (upper, lower)]
    np.testing.assert_array_equal(*shown)  # caption 16 was written for the same picture
    rematched.config.data.name = "flickr8k"
    with pytest.raises(ConfigError, match="only scenes has pictures"):
        plot_rematched.plot(rematched)


def test_pair_shows_the_stored_caption_and_the_right_one(rematched):
    picture, text = plot_rematched.plot_pair(rematched, 0).axes
    label, stored, new_label, new = (each.get_text() for each in text.texts)
    captions = rematched.train.captions
    assert label.startswith("✗") and " ".join(stored.split()) == captions[0]
    assert new_label.startswith("✓") and " ".join(new.split()) == captions[16]
    world = scenes.generate(4, rematched.config.data.scenes_seed, "train").scenes
    shown = picture.get_images()[0].get_array()
    np.testing.assert_array_equal(shown, scenes.draw(world[3]))
    with pytest.raises(ConfigError, match="--pair: 1, found 1 pairs with a right new caption"):
        plot_rematched.plot_pair(rematched, 1)
    rematched.config.data.name = "flickr8k"
    with pytest.raises(ConfigError, match="only scenes has pictures"):
        plot_rematched.plot_pair(rematched, 0)


@pytest.mark.slow
def test_plan_of_a_run(tmp_path):
    """Its shape and words, and the weights of regions, words and dustbins."""
    config = defaults.get_config("quick")
    config.method, config.mismatch.rate = "triplet", 0.0
    config.model.update(tiny.MODEL, head="omit", match_epsilon=1.0)
    config.data.update(scenes_train=8, scenes_dev=4, scenes_test=4, min_count=1)
    config.train.update(batch_size=20, warmup_epochs=0, epochs=1)
    train(config, tmp_path, Replicas(jax.devices()[:1]))
    plan, words = plot_plan.matching_plan(config, tmp_path, picture=2, caption=1)
    test = scenes.generate(4, config.data.scenes_seed, "test")
    assert " ".join(words[1:-1]) == " ".join(tokenize(test.captions[5 * 2 + 1]))
    assert plan.shape == (scenes.REGIONS + 1, len(words) + 1)
    # The last of its few iterations makes the words' weights right, and the regions' nearly.
    np.testing.assert_allclose(plan.sum(0), 1 / plan.shape[1], rtol=1e-5)
    np.testing.assert_allclose(plan.sum(1), 1 / plan.shape[0], rtol=0.01)
    shares = plot_plan.plot(config, plan, words, picture=2).axes[1]
    assert [label.get_text() for label in shares.get_xticklabels()][:-1] == words
    with pytest.raises(ConfigError, match="--picture=4: expected 0 to 3"):
        plot_plan.matching_plan(config, tmp_path, picture=4, caption=0)
    with pytest.raises(ConfigError, match="--caption=5: expected 0 to 4, a caption of picture 2"):
        plot_plan.matching_plan(config, tmp_path, picture=2, caption=5)
