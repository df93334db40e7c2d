"""RCSL: pseudo-pairs, the plan of an epoch, losses, and a run that is stopped while mining."""

import shutil
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.losses.ranking import per_pair_hinge
from l2rm_jax.methods import base, make_method, mining, rcsl
from l2rm_jax.methods.mining import hub_penalties, nearest_keys, pseudo_pairs, recombine
from l2rm_jax.models import make_model
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.train import train
from tests import tiny
from tests.grid import MAIN, VOCABULARY, WARMUP, batches, make_cell, tiny_config
from tests.run.tiny_runs import records

PAIRS, SIZE = 60, 6
IMAGE_OF = np.random.default_rng(0).permutation(PAIRS // 3).repeat(3)
PAIRED = IMAGE_OF < 5


def unit_vectors(rng: np.random.Generator, rows: int) -> np.ndarray:
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def embeddings(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"images": unit_vectors(rng, PAIRS)[IMAGE_OF], "captions": unit_vectors(rng, PAIRS)}


@pytest.mark.parametrize("chunk", [4, 100])
def test_nearest_keys_in_chunks_equal_the_argmax_of_the_whole_matrix(chunk):
    rng = np.random.default_rng(1)
    queries, keys = unit_vectors(rng, 11), unit_vectors(rng, 9)
    expected = np.argmax(queries @ keys.T, axis=1)
    np.testing.assert_array_equal(nearest_keys(queries, keys, chunk=chunk), expected)


@pytest.mark.parametrize("function", [nearest_keys, partial(hub_penalties, tau=0.1)])
def test_searches_never_hold_all_similarities(function):
    shapes = [jax.ShapeDtypeStruct((n, 4), np.float32) for n in (5000, 3000)]
    text = str(jax.make_jaxpr(function)(*shapes))
    assert f"3000,{mining.CHUNK}" in text or f"{mining.CHUNK},3000" in text
    assert "5000,3000" not in text and "3000,5000" not in text


@pytest.mark.parametrize("chunk", [4, 100])
def test_hub_penalties_rebuild_the_transport_plan(chunk):
    rng, tau = np.random.default_rng(2), 0.2
    queries, keys = unit_vectors(rng, 12), unit_vectors(rng, 8)
    plan = np.exp(queries.astype(np.float64) @ keys.T / tau)
    for _ in range(500):
        plan /= 12 * plan.sum(axis=1, keepdims=True)
        plan /= 8 * plan.sum(axis=0)
    query_penalty, key_penalty = hub_penalties(queries, keys, tau, chunk=chunk)
    rebuilt = np.exp((queries @ keys.T - query_penalty[:, None] - key_penalty[None]) / tau)
    np.testing.assert_allclose(rebuilt, plan, rtol=1e-3)
    np.testing.assert_array_equal(nearest_keys(queries, keys, key_penalty), plan.argmax(axis=1))
    np.testing.assert_array_equal(nearest_keys(keys, queries, query_penalty), plan.argmax(axis=0))


def test_transport_gives_a_hub_no_more_than_its_share():
    """All captions are near image 0; each is also a little nearer to its own image."""
    images = np.eye(9, dtype=np.float32)
    captions = 0.8 * images + images[0]
    captions /= np.linalg.norm(captions, axis=1, keepdims=True)
    rows = {"images": images, "captions": captions}
    rest = {"image_of": np.arange(9), "unpaired": np.arange(9)}
    image_for, _ = pseudo_pairs(**rows, **rest)
    np.testing.assert_array_equal(image_for, 0)
    image_for, caption_for = pseudo_pairs(**rows, **rest, transport_tau=0.03)
    np.testing.assert_array_equal(image_for, np.arange(9))
    np.testing.assert_array_equal(caption_for, np.arange(9))


def test_pseudo_pairs_are_searched_among_the_unpaired():
    codes, unpaired = embeddings(2), np.flatnonzero(~PAIRED)
    image_for, caption_for = pseudo_pairs(**codes, image_of=IMAGE_OF, unpaired=unpaired)
    trusted = np.flatnonzero(PAIRED)
    np.testing.assert_array_equal(image_for[trusted], trusted)
    np.testing.assert_array_equal(caption_for[trusted], trusted)
    for pair in unpaired:
        images = codes["images"][unpaired] @ codes["captions"][pair]
        best = unpaired[np.argmax(images)]
        assert not PAIRED[image_for[pair]] and IMAGE_OF[image_for[pair]] == IMAGE_OF[best]
        captions = codes["captions"][unpaired] @ codes["images"][pair]
        assert caption_for[pair] == unpaired[np.argmax(captions)]


def test_unpaired_images_and_captions_are_recombined_at_random():
    rows = recombine(PAIRED, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.arange(PAIRS)[:, None].repeat(2, 1))
    same = rows[:, 0] == rows[:, 1]
    np.testing.assert_array_equal(np.sort(rows[same, 0]), np.flatnonzero(PAIRED))
    without_the_single = recombine(np.arange(4) > 0, np.random.default_rng(1))
    np.testing.assert_array_equal(without_the_single, np.arange(1, 4)[:, None].repeat(2, 1))


def make_dataset() -> SimpleNamespace:
    class Pairs(SimpleNamespace):
        def __len__(self):
            return PAIRS

    true_image = np.arange(PAIRS) // 3
    images = {"stored_image": IMAGE_OF, "caption_image": true_image}
    return Pairs(paired=PAIRED, **images, matched=true_image == IMAGE_OF)


def semi_paired_config(method: str):
    config = defaults.default()
    config.method, config.train.warmup_epochs = method, 1
    config.mismatch.protocol = "semi_paired"
    return config


MODEL = SimpleNamespace(axis_name=None)


def test_mining_rows_hold_a_random_image_and_caption_and_their_best_matches():
    method = make_method(MODEL, semi_paired_config("rcsl"))
    codes = embeddings(3)
    plans = [method.plan(lambda score: codes, make_dataset(), epoch) for epoch in (0, 1, 1, 2)]
    learning, first, again, second = (next(iter(plan.streams.values())) for plan in plans)
    assert learning.shape == (PAIRS, 1, 2) and first.shape == (PAIRS, 2, 2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    for rows in (learning[:, 0], first[:, 0], second[:, 0]):
        trusted = rows[:, 0] == rows[:, 1]
        np.testing.assert_array_equal(np.sort(rows[trusted, 0]), np.flatnonzero(PAIRED))
    image_for, caption_for = pseudo_pairs(
        **codes, image_of=IMAGE_OF, unpaired=np.flatnonzero(~PAIRED)
    )
    np.testing.assert_array_equal(first[:, 1, 0], image_for[first[:, 0, 1]])
    np.testing.assert_array_equal(first[:, 1, 1], caption_for[first[:, 0, 0]])
    true_image, unpaired = np.arange(PAIRS) // 3, ~PAIRED
    right = {
        "mined_images_right": np.mean(IMAGE_OF[image_for][unpaired] == true_image[unpaired]),
        "mined_captions_right": np.mean(IMAGE_OF[unpaired] == true_image[caption_for][unpaired]),
    }
    assert plans[1].report == pytest.approx(right)


def test_learning_takes_a_share_of_the_unpaired():
    config = semi_paired_config("rcsl")
    config.rcsl.learning_share = 0.2
    rows = make_method(MODEL, config).plan(None, make_dataset(), 0).streams["learning"]
    assert len(rows) == PAIRED.sum() + round(0.2 * (~PAIRED).sum())
    assert PAIRED[rows[:, 0, 0]].sum() == PAIRED.sum()


def test_pseudo_pairs_are_searched_before_each_epoch():
    method = make_method(MODEL, semi_paired_config("rcsl"))
    plans = [
        method.plan(lambda score, seed=seed: embeddings(seed), make_dataset(), 1).streams["mining"]
        for seed in (3, 4)
    ]
    np.testing.assert_array_equal(plans[0][:, 0], plans[1][:, 0])
    assert not np.array_equal(plans[0][:, 1], plans[1][:, 1])


def test_search_by_transport():
    config = semi_paired_config("rcsl")
    config.rcsl.search = "transport"
    codes = embeddings(3)
    rows = make_method(MODEL, config).plan(lambda score: codes, make_dataset(), 1).streams["mining"]
    unpaired = np.flatnonzero(~PAIRED)
    search = {"image_of": IMAGE_OF, "unpaired": unpaired, "transport_tau": config.rcsl.tau}
    image_for, caption_for = pseudo_pairs(**codes, **search)
    np.testing.assert_array_equal(rows[:, 1, 0], image_for[rows[:, 0, 1]])
    np.testing.assert_array_equal(rows[:, 1, 1], caption_for[rows[:, 0, 0]])
    config.rcsl.search = "hungarian"
    for method in ("rcsl", "rcsl_nc"):
        config.method = method
        with pytest.raises(ConfigError, match=r"rcsl\.search: found 'hungarian', .*nearest, tran"):
            make_method(MODEL, config)


def test_rcsl_needs_a_protocol_with_known_pairs():
    config = semi_paired_config("rcsl")
    config.mismatch.protocol = "image"
    with pytest.raises(ConfigError, match=r"mismatch.protocol=image.*semi_paired"):
        make_method(MODEL, config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "pooling"), [("vse", "mean"), ("vse", "gpo"), ("aggregate", "mean")]
)
def test_search_vectors_are_those_that_the_head_compares(head, pooling):
    config = tiny_config("rcsl", head)
    config.model.pooling = pooling
    model, sample = make_model(config, VOCABULARY), make_cell(config).sample
    state = make_method(model, config).init(jax.random.key(0), sample)
    codes = rcsl.embed(model, state, sample)
    expected = base.evaluate(model, state, sample)
    np.testing.assert_allclose(codes["images"] @ codes["captions"].T, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["sgr", "omit"])
def test_search_vectors_of_other_heads_are_global_vectors_or_means(head):
    config = tiny_config("rcsl", head)
    model, sample = make_model(config, VOCABULARY), make_cell(config).sample
    state = make_method(model, config).init(jax.random.key(0), sample)
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    codes = model.apply(variables, sample, method="encode")
    for code, (name, vectors) in zip(codes, rcsl.embed(model, state, sample).items(), strict=True):
        expected = code.overall
        if head == "omit":
            local = code.regions if name == "images" else code.words
            mean = [
                rows[mask > 0].mean(axis=0) for rows, mask in zip(local, code.mask, strict=True)
            ]
            expected = [vector / np.linalg.norm(vector) for vector in mean]
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def has_known_pairs(batch: dict) -> bool:
    """Whether a batch has at least two known pairs; the triplet loss of one is zero."""
    [(drawn, *_)] = batch.values()
    return np.sum(drawn.pair_index >= 0) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "epoch", "terms"),
    [
        ("rcsl", WARMUP, {"loss_paired", "loss_alignment", "loss_uniformity"}),
        ("rcsl_nc", WARMUP, {"loss_mining", "loss_alignment", "loss_uniformity"}),
        ("rcsl_nc", MAIN, {"loss_paired", "loss_mining", "loss_alignment", "loss_uniformity"}),
    ],
)
def test_terms_of_each_stage(method, epoch, terms):
    """RCSL Eq. 4 has no mining loss; the warm-up of RCSL-NC trusts no pair."""
    config = tiny_config(method, "vse")
    cell = make_cell(config)
    state = cell.method.init(jax.random.key(0), cell.sample).replace(epoch=np.int32(epoch))
    _, metrics = jax.jit(cell.method.step)(
        state, next(filter(has_known_pairs, batches(cell, epoch)))
    )
    assert metrics.get("loss_paired", 1.0) > 0
    assert {name for name in metrics if name.startswith("loss_")} == terms
    np.testing.assert_allclose(metrics["loss"], sum(metrics[name] for name in terms), rtol=1e-6)


def test_rcsl_nc_treats_pairs_that_the_split_calls_mismatched_as_unpaired():
    method = make_method(MODEL, semi_paired_config("rcsl_nc"))
    rng = np.random.default_rng(6)
    hinge = np.where(PAIRED, rng.normal(0.1, 0.02, PAIRS), rng.normal(0.9, 0.02, PAIRS))
    scores = lambda score: {"hinge": hinge, **embeddings(5)}  # noqa: E731
    [(name, rows)] = method.plan(scores, make_dataset(), 0).streams.items()
    assert name == "warmup"
    np.testing.assert_array_equal(rows, np.arange(PAIRS)[:, None, None].repeat(2, 2))
    plan = method.plan(scores, make_dataset(), 1)
    drawn = plan.streams["mining"][:, 0]
    trusted = drawn[drawn[:, 0] == drawn[:, 1], 0]
    np.testing.assert_array_equal(np.sort(trusted), np.flatnonzero(PAIRED))
    assert plan.report["matched"] == PAIRED.sum() and "split_accuracy" in plan.report


def test_rcsl_nc_splits_by_the_mean_hinge(monkeypatch):
    sims, scored = np.random.default_rng(7).uniform(size=(SIZE, SIZE)), []
    monkeypatch.setattr(base, "evaluate", lambda model, state, batch: batch)
    monkeypatch.setattr(rcsl, "embed", lambda model, state, batch: {})

    def score_pairs(score):
        scored.append(score(None, sims))
        return {"hinge": np.linspace(0, 1, PAIRS), **embeddings(5)}

    make_method(MODEL, semi_paired_config("rcsl_nc")).plan(score_pairs, make_dataset(), 1)
    np.testing.assert_allclose(scored[0]["hinge"], per_pair_hinge(sims, margin=0.2))


@pytest.mark.slow
def test_a_run_stopped_while_mining_continues_to_the_same_numbers(tmp_path, monkeypatch):
    """The resumed run takes the plan from the checkpoint and does not search again."""
    changes = {"mismatch.protocol": "semi_paired", "mismatch.paired_images": 5}
    fields = {"warmup_epochs": 0, "epochs": 1, "checkpoint_steps": 3, "log_steps": 1}
    config = tiny.tiny_config("rcsl", "aggregate", changes, **fields)
    save, one_device = RunCheckpoints.save, Replicas(jax.devices()[:1])

    def save_and_copy(self, step, state, plan, position):
        save(self, step, state, plan, position)
        if "step_in_epoch" in position:
            self.wait()
            assert plan["mining"].shape[1:] == (2, 2)
            shutil.copytree(tmp_path / "whole", tmp_path / "stopped")

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoints, "save", save_and_copy)
        whole = train(config, tmp_path / "whole", one_device)
    assert len(records(tmp_path / "stopped")) < len(records(tmp_path / "whole"))
    monkeypatch.setattr(rcsl, "pseudo_pairs", None)
    assert train(config, tmp_path / "stopped", one_device)["test"] == whole["test"]
    assert records(tmp_path / "stopped") == records(tmp_path / "whole")
    [*_, logged] = (r.keys() for r in records(tmp_path / "whole") if r["kind"] == "epoch")
    assert {"mined_images_right", "loss_mining", "loss_uniformity"} <= logged


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"regulariser": False}, {"loss_alignment", "loss_uniformity"}),
        ({"paired_loss": False}, {"loss_paired"}),
        ({"mining": "none"}, {"loss_mining"}),
        ({"mining": "images"}, set()),
    ],
)
def test_parts_of_the_loss_that_are_switched_off(fields, missing):
    """RCSL Tab. 6."""
    config = tiny_config("rcsl", "vse")
    config.rcsl.update(fields)
    cell = make_cell(config)
    _, metrics = jax.eval_shape(cell.method.step, cell.state, next(batches(cell, MAIN)))
    terms = {"loss_paired", "loss_mining", "loss_alignment", "loss_uniformity"}
    assert {name for name in metrics if name.startswith("loss_")} == terms - missing
    assert ("mining" in cell.method.losses) == ("loss_mining" not in missing)


def test_rcsl_without_any_loss_of_the_learning_stage_is_refused():
    config = tiny_config("rcsl", "vse")
    config.rcsl.update(regulariser=False, paired_loss=False)
    with pytest.raises(ConfigError, match="both"):
        make_cell(config)
