"""CCA as a method: its head against the closed form of `linear`, and its runs."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from l2rm_jax.data import RegionFeatures, TrainPairs
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import Rematched
from l2rm_jax.data.vectors import caption_vectors, image_vectors
from l2rm_jax.devices.batch import Batch
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.methods import make_method
from l2rm_jax.methods.closed_form import RIDGES, START
from l2rm_jax.models import make_model
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.inputs import check_settings
from l2rm_jax.run.run import Run
from l2rm_jax.train import train
from tests.judging.parts import fit_weighted
from tests.run.tiny_runs import records
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("shared_programs")
RNG = np.random.default_rng(0)
IMAGES, VOCABULARY = 30, 12


def grids() -> np.ndarray:
    """Grids of 4 x 4 cells whose neighbours are similar."""
    cells = RNG.standard_normal((IMAGES, 5, 5, 3))
    cells = cells[:, 1:, 1:] + cells[:, :-1, 1:] + cells[:, 1:, :-1]
    return cells.reshape(IMAGES, 16, 3).astype(np.float32)


def sets() -> RegionFeatures:
    """Nine places, of which most images use fewer: no grids."""
    counts = RNG.integers(2, 10, IMAGES)
    counts[0] = 9
    features = RNG.standard_normal((IMAGES, 9, 4)).astype(np.float32)
    features[np.arange(9) >= counts[:, None]] = 0
    return RegionFeatures("images", features, counts.astype(np.int32))


def words() -> list[np.ndarray]:
    return [np.append(1, RNG.integers(3, VOCABULARY - 2, 6)).astype(np.int32) for _ in range(60)]


def vectors(count: int, dimensions: int) -> RegionFeatures:
    rows = RNG.standard_normal((count, dimensions)).astype(np.float32)
    return RegionFeatures.from_array(rows, "vectors")


KINDS = {
    "grids, words": lambda: (RegionFeatures.from_array(grids(), "images"), words()),
    "sets, vectors": lambda: (sets(), vectors(2 * IMAGES, 7)),
    "vectors, words": lambda: (vectors(IMAGES, 6), words()),
}


CASES = [(kind, "posterior") for kind in KINDS] + [("vectors, words", "rematched")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "draw"), CASES)
def test_the_head_scores_as_the_closed_form_does(kind, draw):
    """Features and maps in NumPy and SciPy, against those inside the model."""
    images, tokens = KINDS[kind]()
    stored, posterior = np.repeat(np.arange(IMAGES), 2), RNG.random(2 * IMAGES)
    dataset = TrainPairs(Pairs(images, tokens, stored), stored, posterior=posterior)
    config = tiny_config("cca", "linear", draw=draw)
    own = np.arange(len(stored))
    rows = image_vectors(dataset.pairs).rows, caption_vectors(dataset.pairs).rows
    couples, weights = (stored, own), 1 - posterior
    if draw == "rematched":
        more = Rematched(RNG.integers(0, IMAGES, 25), RNG.integers(0, len(own), 25), RNG.random(25))
        dataset = replace(dataset, rematched=more)
        couples = np.append(stored, more.image), np.append(own, more.caption)
        weights = np.append(1 - posterior, more.weight)
    in_words = isinstance(tokens, list)
    model = make_model(config, VOCABULARY if in_words else 0)
    every = np.arange(IMAGES)
    text = np.stack(tokens) if in_words else tokens.rows(np.arange(len(stored)))
    method = make_method(model, config)
    batch = Batch(images.rows(every), images.region_counts(every), text, dataset.lengths)
    state = method.init(jax.random.key(0), batch)
    fitted = method.fit(state, dataset)
    assert len(fitted) == method.epochs == len(RIDGES)
    for (new, report), ridge in zip(fitted, RIDGES, strict=True):
        assert report == {"ridge_images": ridge.images, "ridge_captions": ridge.captions}
        # Each of the pairs, whether stored or rematched, has a caption row of its own.
        captions = rows[1][couples[1]]
        reference = fit_weighted(rows[0], captions, couples[0], weights, ridge)
        codes = reference.encode_images(rows[0][every])
        expected = codes @ reference.encode_captions(rows[1][own]).T
        variables = {"params": new.params, "batch_stats": new.batch_stats}
        found = model.apply(variables, batch)
        np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("cca")
    return workdir, train(tiny_config("cca", "linear"), workdir)


@pytest.mark.slow
def test_a_run_keeps_the_best_ridge(run):
    workdir, results = run
    epochs = [record for record in records(workdir) if record["kind"] == "epoch"]
    assert [record["ridge_images"] for record in epochs] == [ridge.images for ridge in RIDGES]
    assert results["best_validation_rsum"] == max(record["rsum"] for record in epochs)
    assert results["head"] == "linear"


@pytest.mark.slow
def test_a_run_is_evaluated_and_proposes(run):
    workdir, results = run
    rows = evaluate_runs([workdir], proposer=workdir, candidates=[0, 10])
    own = [row["rsum"] for name, row in rows.items() if name != "chance"]
    assert own == pytest.approx([results["rsum"]] * 2)  # all 10 images are candidates


def train_killed(config, workdir, monkeypatch, epochs: int) -> dict:
    """Results of a run that is killed at the end of its epoch `epochs`, and continues."""
    real = Run.finish_epoch

    def finish_epoch(self, finished, rsum):
        if finished == epochs:
            raise KeyboardInterrupt
        real(self, finished, rsum)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "finish_epoch", finish_epoch)
        train(config, workdir)
    return train(config, workdir)


@pytest.mark.slow
def test_a_run_that_was_killed_continues(run, tmp_path, monkeypatch):
    again = train_killed(tiny_config("cca", "linear"), tmp_path, monkeypatch, 3)
    workdir, whole = run
    assert again["test"] == whole["test"]
    assert records(tmp_path) == records(workdir)


@pytest.mark.slow
def test_other_methods_start_from_a_fit(run, tmp_path, monkeypatch):
    """From one with much ridge; the best of all fits and epochs is the result."""
    workdir, fitted = run
    fits = [record["rsum"] for record in records(workdir) if record["kind"] == "epoch"]
    start, best = fits[START], fitted["best_validation_rsum"]
    assert start < best
    settings = {"draw": "even", "warmup_epochs": 0, "epochs": 1}
    config = tiny_config("infonce", "linear", **settings)
    config.optim.learning_rate = 1e-9
    results = train_killed(config, tmp_path / "still", monkeypatch, 1)
    [epoch] = [record for record in records(tmp_path / "still") if record["kind"] == "epoch"]
    assert epoch["rsum"] == pytest.approx(start)
    assert results["rsum"] == pytest.approx(fitted["rsum"])
    config.optim.learning_rate = 1.0  # destroys the model
    results = train(config, tmp_path / "destroyed")
    [epoch] = [each for each in records(tmp_path / "destroyed") if each["kind"] == "epoch"]
    assert results["best_validation_rsum"] == max(best, epoch["rsum"])


def test_the_method_brings_its_head():
    config = with_changes(tiny_config("l2rm", "saf"), {"method": "cca"})
    assert config.model.head == "linear"
    check_settings(config)
    config.model.head = "saf"
    with pytest.raises(ConfigError, match=r"model\.head: found 'saf'"):
        check_settings(config)
